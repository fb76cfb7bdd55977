"""The same graph on a Kubeflow cluster; see docs/cluster.md."""
