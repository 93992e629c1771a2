//! Scrapes every process every 10 ms, each from a thread of its own.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::checker::{Answer, Sample};
use crate::scrape::{REQUEST, read, receive, sample, scrape};

/// Time between two scrapes of one process.
pub(crate) const PERIOD: Duration = Duration::from_millis(10);

/// When a scrape is given up: the first answer of a process that was paused is then one to a recent request, which
/// proves more than one to an old request.
const TIMEOUT: Duration = Duration::from_millis(200);

/// Connections of one [`Volley`].
const VOLLEY: usize = 32;

/// Records until it is dropped.
#[derive(Debug)]
pub(crate) struct Recorder {
    targets: Vec<SocketAddr>,
    samples: Vec<Arc<Mutex<Vec<Sample>>>>,
    began: Instant,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Recorder {
    /// Starts to scrape `http://ADDRESS/metrics` of each of `targets`.
    pub(crate) fn start(targets: &[SocketAddr]) -> Self {
        let (began, stop) = (Instant::now(), Arc::new(AtomicBool::new(false)));
        let samples: Vec<Arc<Mutex<Vec<Sample>>>> = targets.iter().map(|_| Arc::default()).collect();
        let threads = (0..).zip(targets).zip(&samples).map(|((target, &address), samples)| {
            let (samples, stop) = (Arc::clone(samples), Arc::clone(&stop));
            std::thread::spawn(move || record(target, address, began, &samples, &stop))
        });
        Self { threads: threads.collect(), targets: targets.to_vec(), samples, began, stop }
    }

    /// The present instant on the clock of the recording.
    pub(crate) fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// Every sample so far, one process after another.
    pub(crate) fn samples(&self) -> Vec<Sample> {
        self.samples.iter().flat_map(|samples| samples.lock().unwrap().clone()).collect()
    }

    /// The last sample of each process.
    pub(crate) fn last(&self) -> Vec<Option<Sample>> {
        self.samples.iter().map(|samples| samples.lock().unwrap().last().copied()).collect()
    }

    /// Whoever exported at its last scrape.
    pub(crate) fn exporting(&self) -> Vec<usize> {
        let exporting = |sample: &Sample| matches!(sample.answer, Answer::Exporting(_));
        self.last().into_iter().flatten().filter(exporting).map(|sample| sample.target).collect()
    }
}

/// Further connections to one process, each with one request at a time: of a process that goes on after a pause,
/// some of many answers are more likely than one to be written before anything else is done.
#[derive(Debug)]
pub(crate) struct Volley {
    target: usize,
    connections: Vec<TcpStream>,
    sent: Duration,
}

impl Recorder {
    /// Opens the connections, and uses each once.
    pub(crate) fn volley(&self, target: usize) -> Volley {
        let open = |_| {
            let mut connection = None;
            scrape(&mut connection, self.targets[target], TIMEOUT).ok()?;
            connection
        };
        Volley { target, connections: (0..VOLLEY).filter_map(open).collect(), sent: Duration::ZERO }
    }

    /// Sends the requests. Whoever lets the process go on does it next.
    pub(crate) fn send(&self, volley: &mut Volley) {
        volley.sent = self.elapsed();
        // One that the process has closed has no answer.
        volley.connections.retain_mut(|connection| connection.write_all(REQUEST).is_ok());
    }

    /// Reads and records the answers.
    pub(crate) fn receive(&self, volley: Volley) {
        let Volley { target, connections, sent } = volley;
        for mut connection in connections {
            if let Ok(body) = receive(&mut connection) {
                let sample = Sample { target, sent, received: self.elapsed(), answer: read(&body) };
                self.samples[target].lock().unwrap().push(sample);
            }
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn record(target: usize, address: SocketAddr, began: Instant, samples: &Mutex<Vec<Sample>>, stop: &AtomicBool) {
    let mut connection = None;
    let mut next = Instant::now();
    while !stop.load(Ordering::Relaxed) {
        let sample = sample(target, began, &mut connection, (address, TIMEOUT));
        samples.lock().unwrap().push(sample);
        next = (next + PERIOD).max(Instant::now());
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
    }
}
