// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
)

// TestMetricsAreNamedByConvention holds names, types and help texts against Prometheus' conventions
// (promtool check metrics has the same).
func TestMetricsAreNamedByConvention(t *testing.T) {
	t.Parallel()
	types := map[string]dto.MetricType{"counter": dto.MetricType_COUNTER, "gauge": dto.MetricType_GAUGE, "histogram": dto.MetricType_HISTOGRAM}
	seen := map[string]bool{}
	for _, src := range metricSources {
		for _, dir := range src.dirs {
			found, err := metricsOf(filepath.Join("../..", dir))
			if err != nil {
				t.Fatalf("%s: %v", dir, err)
			}
			for _, m := range found {
				if seen[m.name] {
					t.Errorf("%s is served twice", m.name)
				}
				seen[m.name] = true
				kind, ok := types[m.kind]
				if !ok {
					t.Errorf("%s is a %s", m.name, m.kind)
				}
				problems, err := promlint.NewWithMetricFamilies([]*dto.MetricFamily{{Name: &m.name, Help: &m.help, Type: &kind}}).Lint()
				if err != nil {
					t.Fatal(err)
				}
				for _, p := range problems {
					t.Errorf("%s: %s", p.Metric, p.Text)
				}
				if !strings.HasSuffix(m.help, ".") {
					t.Errorf("%s: %q is no sentence", m.name, m.help)
				}
			}
		}
	}
}
