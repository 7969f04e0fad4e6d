// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"os"
	"strings"
	"testing"
	"testing/fstest"
)

// A runner that is content with anything proves nothing: wrong expectations must fail, and say why.
func TestWrongExpectationsFail(t *testing.T) {
	flat, err := os.ReadFile("../clusters/flat.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const good = "send pod:default/a tcp 10.244.1.2:1 > 10.244.2.2:80 S\n"
	for run, why := range map[string]string{
		good:                             "nothing is expected",
		good + "arrives pod:default/b\n": `ended at "pod:default/c"`,
		good + "arrives pod:default/c tcp 10.244.1.2:2 > *\n":                                             "is not as expected",
		good + "arrives pod:default/c tcp * > * . \n":                                                     "is not as expected",
		good + "arrives pod:default/c tcp * > * S ttl=64\n":                                               "is not as expected",
		good + "by w1/from_workload=neigh\n":                                                              "went by w1/from_workload=neigh w2/from_uplink=local",
		good + "drop w1 from_workload SPOOFED\n":                                                          "ended at",
		good + "lost router\n":                                                                            "ended at",
		good + "rule w1 NetworkPolicy\n":                                                                  `allowed by rule "none"`,
		good + "rule cp NetworkPolicy\n":                                                                  "did not meet node cp",
		good + "arrives pod:default/c\nsend pod:default/a x\n":                                            "not one of",
		good + "arrives pod:default/c\nreply\n":                                                           "nothing is expected",
		"send pod:default/a udp 9.9.9.9:1 > 10.244.2.2:80\narrives x\n":                                   `ended at "drop"`,
		"send pod:default/a udp 9.9.9.9:1 > 10.244.2.2:80\ndrop w1 from_workload POLICY_EGRESS\n":         "dropped: w1 from_workload SPOOFED",
		"send pod:default/a udp 9.9.9.9:1 > 10.244.2.2:80\ndrop w1 from_workload SPOOFED NetworkPolicy\n": `by rule "none"`,
		"send pod:default/nobody udp 9.9.9.9:1 > 10.244.2.2:80\n":                                         "no pod default/nobody",
		"arrives pod:default/c\n":                                                                         "nothing was sent",
		"connect pod:default/a tcp 10.96.0.1:80 -> 1.2.3.4:80\n":                                          "was sent to 10.96.0.1:80",
		"connect pod:default/a tcp 10.96.0.1:80 refused\n":                                                "was sent to",
		"apply nothing.yaml\n":                                                                            "no such file",
		"delete Service default/nothing\n":                                                                "there is none",
		"apply typo.yaml\n":                                                                               "unknown field",
		"apply bad.yaml\n":                                                                                "spec.ingress",
		"apply config.yaml\n":                                                                             "bpfConnectTimeLoadBalancing",
		"fly\n":                                                                                           "not a command",
	} {
		dir := fstest.MapFS{"clusters/flat.yaml": {Data: flat}, "x.txtar": {Data: []byte(`
-- typo.yaml --
apiVersion: v1
kind: Service
metadata: {name: x, namespace: default}
spec: {clusterip: 10.96.0.1, prots: []}
-- bad.yaml --
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: x, namespace: default}
spec: {podSelector: {}, ingress: [{from: [{ipBlock: {cidr: nonsense}}]}]}
-- config.yaml --
apiVersion: projectcalico.org/v3
kind: FelixConfiguration
metadata: {name: default}
spec: {bpfConnectTimeLoadBalancing: Sometimes}
-- run --
` + run)}}
		s, err := Read(dir, "x.txtar")
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Play(NewSim(1)); err == nil || !strings.Contains(err.Error(), why) {
			t.Errorf("%s---- got %v, want an error with %q", run, err, why)
		}
	}
}

func TestMatchText(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"a", "a", true}, {"a", "b", false}, {"*", "anything", true}, {"a*c", "abc", true}, {"a*c", "abd", false},
		{"a*b*c", "axxbyyc", true}, {"a*b*c", "acb", false}, {"*x", "yx", true}, {"ab*ba", "aba", false},
	} {
		if got := matchText(c.pattern, c.text); got != c.want {
			t.Errorf("matchText(%q, %q) = %v", c.pattern, c.text, got)
		}
	}
}
