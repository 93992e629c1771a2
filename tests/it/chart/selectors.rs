//! Who is selected by whom: Services, monitors, budgets and policies find the Pods of their own release, and no label
//! that the program sets decides about a workload.

use serde_json::{Map, Value, json};

use super::helm::{LONGEST_RELEASE, Rendering, cases};
use super::objects::{Objects, Template, kind, labels, match_labels, name, namespace, selects};

const LEADER: &str = "leader";

/// The releases that share a namespace; the first is looked at.
struct Neighbours {
    own: Objects,
    all: Vec<Objects>,
}

impl Neighbours {
    fn new(own: &Rendering, others: &[Rendering]) -> Self {
        let own = own.objects();
        let all = others.iter().map(Rendering::objects).chain([own.clone()]).collect();
        Self { own, all }
    }

    fn templates(&self) -> Vec<Template<'_>> {
        self.all.iter().flat_map(Objects::templates).collect()
    }

    fn services(&self) -> Vec<&Value> {
        self.all.iter().flat_map(|objects| objects.of("Service")).collect()
    }

    /// The Deployment of the release, which has to be the only one that a selector finds.
    fn deployment(&self, who: &Value, selector: &Value) -> &Value {
        let (mut found, deployment) = (Vec::new(), self.own.only("Deployment"));
        for template in self.templates() {
            if selects(selector, &template.labels) {
                found.push(template.owner);
            }
        }
        assert_eq!(found, [("Deployment", name(deployment))], "{} {}: {selector}", kind(who), name(who));
        deployment
    }

    /// The Service of the release that a monitor finds, which has to be the only one.
    fn service(&self, monitor: &Value) -> &Value {
        let selector = match_labels(&monitor["spec"]["selector"]);
        let watched = watched_namespaces(monitor);
        let found = |service: &&Value| watched.contains(&namespace(service)) && selects(selector, &labels(service));
        let found: Vec<_> = self.services().into_iter().filter(found).collect();
        let [service] = found[..] else { panic!("{} finds {} Services: {selector}", name(monitor), found.len()) };
        assert!(self.own.of("Service").any(|own| own == service), "{} finds {}", name(monitor), name(service));
        service
    }

    fn check(&self) {
        let role = role_label(&self.own);
        for service in self.own.of("Service") {
            let selector = without(&service["spec"]["selector"], &role);
            let deployment = self.deployment(service, &selector);
            for port in service["spec"]["ports"].as_array().unwrap() {
                assert!(container_ports(deployment).contains(&port["targetPort"]), "{}: {port}", name(service));
            }
        }
        for monitor in self.own.of("ServiceMonitor") {
            let service = self.service(monitor);
            let leads = service["spec"]["selector"].get(&role).is_some();
            assert_eq!(
                leads,
                name(monitor).split('.').next().unwrap().ends_with("-leader"),
                "{} finds {}",
                name(monitor),
                name(service)
            );
            let ports: Vec<_> = service["spec"]["ports"].as_array().unwrap().iter().map(|port| &port["name"]).collect();
            for endpoint in monitor["spec"]["endpoints"].as_array().unwrap() {
                assert!(ports.contains(&&endpoint["port"]), "{}: {endpoint}", name(monitor));
            }
        }
        for monitor in self.own.of("PodMonitor") {
            let deployment = self.deployment(monitor, match_labels(&monitor["spec"]["selector"]));
            assert_eq!(watched_namespaces(monitor), [namespace(deployment)], "{}", name(monitor));
            for endpoint in monitor["spec"]["podMetricsEndpoints"].as_array().unwrap() {
                assert!(container_ports(deployment).contains(&endpoint["port"]), "{}: {endpoint}", name(monitor));
            }
        }
        let budgets = self.own.of("PodDisruptionBudget").map(|budget| (budget, &budget["spec"]["selector"]));
        let policies = self.own.of("NetworkPolicy").map(|policy| (policy, &policy["spec"]["podSelector"]));
        let workloads = self.own.of("Deployment").map(|workload| (workload, &workload["spec"]["selector"]));
        for (object, selector) in budgets.chain(policies).chain(workloads) {
            self.deployment(object, match_labels(selector));
        }
    }
}

/// The namespaces whose Services or Pods a monitor looks at.
fn watched_namespaces(monitor: &Value) -> Vec<&str> {
    match monitor["spec"].get("namespaceSelector") {
        None => vec![namespace(monitor)],
        Some(selector) => {
            selector["matchNames"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
        }
    }
}

fn container_ports(deployment: &Value) -> Vec<Value> {
    let containers = deployment["spec"]["template"]["spec"]["containers"].as_array().unwrap();
    let ports = containers.iter().filter_map(|container| container["ports"].as_array()).flatten();
    ports.map(|port| port["name"].clone()).collect()
}

/// The label that the program sets, by its configuration.
fn role_label(objects: &Objects) -> String {
    let configuration: Value = serde_yaml::from_str(objects.configuration()).unwrap();
    configuration["kubernetes"]["role_label"].as_str().unwrap().to_owned()
}

fn without(selector: &Value, label: &str) -> Value {
    let mut selector = selector.as_object().unwrap().clone();
    selector.remove(label);
    selector.into()
}

/// Everything that selects or is selected, in every case.
fn all_on(name: &str) -> Rendering {
    Rendering::named(name).with(json!({"networkPolicy": {"enabled": true}, "podDisruptionBudget": {"enabled": true}}))
}

#[test]
fn each_selector_finds_exactly_what_it_is_for_in_every_case() {
    for case in cases() {
        Neighbours::new(&Rendering::case(&case), &[]).check();
    }
}

#[test]
fn of_two_releases_in_one_namespace_each_finds_only_its_own() {
    let last = |letter: &str| "r".repeat(LONGEST_RELEASE - 1) + letter;
    let pairs = [
        ("retsu".to_owned(), "retsu-2".to_owned()),
        ("retsu".to_owned(), "retsu-collector".to_owned()),
        (last("a"), last("b")),
    ];
    for name in ["everything", "pod-monitor"] {
        for (one, other) in &pairs {
            let [one, other] = [one, other].map(|release| all_on(name).release(release));
            Neighbours::new(&one, std::slice::from_ref(&other)).check();
            Neighbours::new(&other, &[one]).check();
        }
    }
}

/// The Pod of `helm test`, of this part of a release or of another, is no replica whatever the parts are called.
#[test]
fn no_selector_finds_the_pod_of_a_test_by_the_name_of_the_chart() {
    for (own, other) in [("o".repeat(63), "other".to_owned()), ("queues-test".to_owned(), "queues".to_owned())] {
        let [own, other] = [own, other].map(|name| {
            let names = json!({"nameOverride": name, "fullnameOverride": name[..name.len().min(50)]});
            all_on("everything").with(names)
        });
        Neighbours::new(&own, std::slice::from_ref(&other)).check();
        Neighbours::new(&other, &[own]).check();
    }
}

#[test]
fn the_role_label_decides_about_no_workload_and_the_leader_service_selects_what_the_program_sets() {
    let changed =
        Rendering::named("everything").with(json!({"config": {"kubernetes": {"role_label": "example.com/r"}}}));
    for rendering in cases().iter().map(|case| Rendering::case(case)).chain([changed]) {
        let objects = rendering.objects();
        let role = role_label(&objects);
        let leading: Vec<_> =
            objects.of("Service").filter(|service| service["spec"]["selector"].get(&role).is_some()).collect();
        let [service] = leading[..] else { panic!("{} Services select {role}", leading.len()) };
        assert_eq!(service["spec"]["selector"][&role], LEADER);
        assert!(name(service).ends_with("-leader"), "{}", name(service));
        assert_eq!(service["spec"]["publishNotReadyAddresses"], json!(false));
        for object in objects.iter().filter(|object| kind(object) != "Service") {
            let elsewhere = keys(object).into_iter().filter(|key| key.contains(&role)).collect::<Vec<_>>();
            assert_eq!(elsewhere, Vec::<&str>::new(), "{} {}", kind(object), name(object));
        }
    }
}

/// The keys of all objects in a value, at every depth.
fn keys(value: &Value) -> Vec<&str> {
    match value {
        Value::Array(items) => items.iter().flat_map(keys).collect(),
        Value::Object(members) => {
            members.iter().flat_map(|(key, value)| [vec![key.as_str()], keys(value)].concat()).collect()
        }
        _ => Vec::new(),
    }
}

#[test]
fn what_the_program_selects_are_the_pods_of_the_deployment_and_no_others() {
    for case in cases() {
        let own = Rendering::case(&case);
        let neighbours = Neighbours::new(&own, &[own.clone().release("other")]);
        let configuration: Value = serde_yaml::from_str(neighbours.own.configuration()).unwrap();
        let selector = configuration["kubernetes"]["instance_selector"].as_str().unwrap();
        let pairs = selector.split(',').map(|pair| pair.split_once('=').unwrap());
        let selector: Map<_, _> = pairs.map(|(label, value)| (label.to_owned(), value.into())).collect();
        let deployment = neighbours.deployment(neighbours.own.only("Deployment"), &selector.into());
        let container = configuration["kubernetes"]["container_name"].as_str().unwrap();
        let containers = deployment["spec"]["template"]["spec"]["containers"].as_array().unwrap();
        assert!(containers.iter().any(|own| own["name"] == container), "{container}");
    }
}
