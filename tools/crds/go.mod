module retsu-collector/tools/crds

go 1.26.7

require (
	github.com/kedacore/keda/v2 v2.21.0
	github.com/prometheus-operator/prometheus-operator v0.92.1
)
