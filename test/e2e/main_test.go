// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const report = `<?xml version="1.0"?><testsuites><testsuite>
<testcase name="[SynchronizedBeforeSuite]" status="passed"></testcase>
<testcase name="[SynchronizedAfterSuite]" status="failed"><failure>no clean end</failure></testcase>
<testcase name="[It] [sig-network] a" status="passed" time="1.5"></testcase>
<testcase name="[It] [sig-network] b" status="failed" time="2"><failure>timed out
at line 7</failure></testcase>
<testcase name="[It] [sig-network] c " status="skipped"><skipped message="skipped - too few nodes"></skipped></testcase>
<testcase name="[It] [sig-network] d" status="interrupted" time="3"><failure>interrupted</failure></testcase>
<testcase name="[It] [sig-node] z" status="skipped"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`

func TestOutcomes(t *testing.T) {
	dir := t.TempDir()
	if _, err := readReports(dir); err == nil {
		t.Error("an empty folder gave no error")
	}
	if err := os.WriteFile(filepath.Join(dir, "junit_01.xml"), []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	found, err := readReports(dir)
	if err != nil {
		t.Fatal(err)
	}
	specs := []string{"[sig-network] a", "[sig-network] b", "[sig-network] c", "[sig-network] d", "[sig-network] e"}
	got := outcomes(task{group: group{Name: "g"}, Specs: specs}, found)
	want := []spec{
		{Name: "[SynchronizedAfterSuite]", Group: "g", Outcome: failed, Message: "no clean end"},
		{Name: "[sig-network] a", Group: "g", Outcome: passed, Seconds: 1.5},
		{Name: "[sig-network] b", Group: "g", Outcome: failed, Seconds: 2, Message: "timed out\nat line 7"},
		{Name: "[sig-network] c", Group: "g", Outcome: skipped, Message: "skipped - too few nodes"},
		{Name: "[sig-network] d", Group: "g", Outcome: missing, Seconds: 3},
		{Name: "[sig-network] e", Group: "g", Outcome: missing},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
}

func TestClassify(t *testing.T) {
	tasks := []task{{Specs: []string{"a", "b", "c", "d", "e"}}}
	run := func(b string) oneRun {
		return oneRun{Specs: []spec{{Name: "a", Outcome: passed}, {Name: "b", Outcome: b}, {Name: "c", Outcome: failed},
			{Name: "d", Outcome: skipped}, {Name: "e", Outcome: passed}}}
	}
	r := &result{Runs: []oneRun{run(passed), run(failed)}}
	r.classify(map[string]string{"c": "waits", "e": "waits", "not in the run": "waits"}, tasks)
	if want := []string{"b", "d"}; !reflect.DeepEqual(r.Wrong, want) {
		t.Errorf("wrong: %v, want %v: one bad run is enough, and a spec may not skip itself", r.Wrong, want)
	}
	if !reflect.DeepEqual(r.Known, []string{"c"}) || !reflect.DeepEqual(r.Recovered, []string{"e"}) {
		t.Errorf("known %v, recovered %v", r.Known, r.Recovered)
	}
	if r.verdict("list") == nil {
		t.Error("a wrong spec gave no error")
	}
	for outcome, ok := range map[string]bool{passed: true, missing: false, skipped: false, failed: false} {
		r := &result{Runs: []oneRun{{Specs: []spec{{Name: "a", Outcome: passed}, {Name: "b", Outcome: outcome}}}}}
		if r.classify(nil, []task{{Specs: []string{"a", "b"}}}); (r.verdict("") == nil) != ok {
			t.Errorf("%s: verdict %v", outcome, r.verdict(""))
		}
	}
	if (&result{}).verdict("") == nil {
		t.Error("a run without specs gave no error")
	}
}

func TestSecondTryExcusesFew(t *testing.T) {
	var names []string
	var specs []spec
	for i := range maxExcused + 1 {
		name := strings.Repeat("x", i+1)
		names, specs = append(names, name), append(specs, spec{Name: name, Outcome: failed, Again: passed})
	}
	for n, want := range map[int]int{1: 0, maxExcused: 0, maxExcused + 1: maxExcused + 1} {
		r := &result{SecondTry: true, Runs: []oneRun{{Specs: specs[:n]}}}
		if r.classify(nil, []task{{Specs: names[:n]}}); len(r.Wrong) != want {
			t.Errorf("%d specs that passed alone: %d wrong, want %d", n, len(r.Wrong), want)
		}
	}
	for outcome, again := range map[string]string{failed: failed, skipped: passed, missing: passed} {
		r := &result{SecondTry: true, Runs: []oneRun{{Specs: []spec{{Name: "x", Outcome: outcome, Again: again}}}}}
		if r.classify(nil, []task{{Specs: []string{"x"}}}); len(r.Wrong) != 1 {
			t.Errorf("%s and then %s is excused", outcome, again)
		}
	}
	r := &result{Runs: []oneRun{{Specs: specs[:1]}}}
	if r.classify(nil, []task{{Specs: names[:1]}}); len(r.Wrong) != 1 {
		t.Error("excused without --second-try")
	}
}

func TestSkips(t *testing.T) {
	path := filepath.Join(t.TempDir(), "skips")
	write := func(s string) {
		if err := os.WriteFile(path, []byte(s), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for content, why := range map[string]string{
		"a\n":                            "no reason",
		"reason because: of it\na\n":     "a reason that is not allowed",
		"reason sctp: none\na\nb\na\n":   "a spec twice",
		"reason sctp none\na\n":          "no colon",
		"reason sctp: x\nreason\na b\na": "",
	} {
		write(content)
		if _, err := readSkips(path); (err == nil) != (why == "") {
			t.Errorf("%s: error %v", why, err)
		}
	}
	write("# text\nreason sctp: none here\n  a [x]\n\nreason cloud: far away\nb\n")
	skips, err := readSkips(path)
	if want := []skip{{"a [x]", "sctp"}, {"b", "cloud"}}; err != nil || !reflect.DeepEqual(skips, want) {
		t.Fatalf("%v, %v", skips, err)
	}
	if got, err := selectSpecs([]string{"a [x]", "b", "c"}, skips); err != nil || !reflect.DeepEqual(got, []string{"c"}) {
		t.Errorf("selected %v, %v", got, err)
	}
	if _, err := selectSpecs([]string{"a [x]", "c"}, skips); err == nil || !strings.Contains(err.Error(), "b") {
		t.Errorf("a skip without its spec: %v", err)
	}
}

func TestParseSpecs(t *testing.T) {
	listing := "The following spec names can be used:\n    a/b.go:1: [sig-network] Two [x] \n    a/b.go:2: [sig-node] other\n    a/c.go:3: [sig-network] One\n"
	got, err := parseSpecs(listing, suite)
	if want := []string{"[sig-network] One", "[sig-network] Two [x]"}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseSpecs("nothing", suite); err == nil {
		t.Error("an empty list gave no error")
	}
	if _, err := parseSpecs(listing+"    a/d.go:4: [sig-network] One\n", suite); err == nil {
		t.Error("a name twice gave no error")
	}
}

func TestExactly(t *testing.T) {
	re := regexp.MustCompile(exactly([]string{"[sig-network] a (b)", "[sig-network] c"}))
	for text, want := range map[string]bool{
		"Suite [sig-network] a (b)": true, "Suite [sig-network] a (b) ": true, "Suite [sig-network] c": true,
		"Suite [sig-network] a (b) too": false, "Suite [sig-network] cd": false, "Suite c": false,
	} {
		if re.MatchString(text) != want {
			t.Errorf("%q: %v", text, !want)
		}
	}
}

func TestGroups(t *testing.T) {
	tasks, rest := divide(whole, []string{"x [Feature:PerformanceDNS] y", "anything"})
	if len(rest) != 0 || len(tasks[0].Specs) != 1 || len(tasks[len(tasks)-1].Specs) != 1 {
		t.Errorf("%+v, %v", tasks, rest)
	}
	left, err := narrow(tasks, regexp.MustCompile("any"), nil)
	if err != nil || len(left) != 1 || left[0].Name != "main" {
		t.Errorf("%+v, %v", left, err)
	}
	if _, err := narrow(tasks, regexp.MustCompile("any"), []string{"alone"}); err == nil {
		t.Error("nothing to run gave no error")
	}
	if _, err := narrow(tasks, regexp.MustCompile(""), []string{"main", "none"}); err == nil {
		t.Error("an unknown group gave no error")
	}
}

func TestProgress(t *testing.T) {
	var out bytes.Buffer
	ended := map[string]spec{}
	p := &progress{group: "g", specs: []string{"[sig-network] a", "[sig-network] a b [C]", "[sig-network] x y", "[sig-network] cut"}, to: &out,
		report: func(s spec) { ended[s.Name] = s }}
	log := "------\n• [1.250 seconds]\n[sig-network] a b [C] [labels]\nfile.go:1\n• [FAILED] [61.000 seconds]\n[sig-network] x [It] y\n  [sig-network] x y\n" +
		"• [INTERRUPTED] [7.000 seconds]\n[sig-network] cut [It]\nS [SKIPPED] [0.100 seconds]\n[sig-network] a\n"
	for i := range len(log) {
		p.Write([]byte{log[i]})
	}
	want := map[string]spec{"[sig-network] a b [C]": {Name: "[sig-network] a b [C]", Group: "g", Outcome: passed, Seconds: 1.25},
		"[sig-network] x y": {Name: "[sig-network] x y", Group: "g", Outcome: failed, Seconds: 61},
		"[sig-network] a":   {Name: "[sig-network] a", Group: "g", Outcome: skipped, Seconds: 0.1}}
	if !reflect.DeepEqual(ended, want) {
		t.Errorf("got  %+v\nwant %+v", ended, want)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || p.done != 3 || p.failed != 2 || !strings.HasSuffix(lines[0], "[sig-network] a b [C]") || !strings.Contains(lines[1], "failed") || !strings.Contains(lines[2], "skipped") {
		t.Errorf("%d done, %d failed\n%s", p.done, p.failed, out.String())
	}
}

// A single process writes a spec's name when it begins.
func TestProgressOfOneProcess(t *testing.T) {
	ended := map[string]string{}
	p := &progress{group: "g", serial: true, specs: []string{"[sig-network] a", "[sig-network] b", "[sig-network] c"}, to: io.Discard,
		report: func(s spec) { ended[s.Name] = fmt.Sprint(s.Outcome, s.Seconds) }}
	fmt.Fprint(p, "------\n[sig-network] a [labels]\n  STEP: x\n• [1.500 seconds]\n------\n[sig-network] b\n• [FAILED] [2.000 seconds]\n[sig-network] b [It]\n"+
		"------\n[sig-network] c\n  STEP: y\n")
	if want := map[string]string{"[sig-network] a": "passed1.5", "[sig-network] b": "failed2"}; !reflect.DeepEqual(ended, want) {
		t.Errorf("got %v, want %v", ended, want)
	}
}

func TestRecorder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out", "e2e.json")
	tasks := []task{{group: group{Name: "g"}, Specs: []string{"a", "b", "c", "d"}}}
	first := &recorder{res: &result{Build: "x", Focus: "f"}, path: path}
	if left := first.begin(1, tasks); !reflect.DeepEqual(left, tasks) {
		t.Errorf("a new run lacks %+v", left)
	}
	first.ended(spec{Name: "a", Group: "g", Outcome: passed})
	first.ended(spec{Name: "b", Group: "g", Outcome: failed, Seconds: 3})
	first.ended(spec{Name: "c", Group: "g", Outcome: missing})
	if again := first.failed(tasks[0]); !reflect.DeepEqual(again, []string{"b"}) {
		t.Errorf("to be run once more: %v", again)
	}
	first.again(spec{Name: "b", Outcome: passed})
	first.ended(spec{Name: "b", Group: "g", Outcome: failed, Message: "why"})
	if again := first.failed(tasks[0]); len(again) != 0 {
		t.Errorf("run once more already: %v", again)
	}
	// Nothing was reported of an end: the file has all.
	res := &result{Build: "x", Focus: "f"}
	if err := res.resume(path); err != nil {
		t.Fatal(err)
	}
	second := &recorder{res: res, path: path}
	if left := second.begin(1, tasks); len(left) != 1 || !reflect.DeepEqual(left[0].Specs, []string{"c", "d"}) || len(tasks[0].Specs) != 4 {
		t.Errorf("left of the run: %+v", left)
	}
	if b := res.Runs[0].Specs[1]; b.Outcome != failed || b.Again != passed || b.Message != "why" {
		t.Errorf("a failure that passed once more: %+v", b)
	}
	second.ended(spec{Name: "c", Group: "g", Outcome: passed})
	second.ended(spec{Name: "d", Group: "g", Outcome: passed})
	if left := second.begin(1, tasks); left != nil {
		t.Errorf("left of a whole run: %+v", left)
	}
	if left := second.begin(2, tasks); !reflect.DeepEqual(left, tasks) {
		t.Errorf("the second run lacks %+v", left)
	}
	if res.classify(nil, tasks); len(res.Wrong) != 4 {
		t.Errorf("a run in which nothing ran: wrong %v", res.Wrong)
	}
	res.Runs = res.Runs[:1]
	res.classify(nil, tasks)
	if !reflect.DeepEqual(res.Wrong, []string{"b"}) || res.verdict("") == nil {
		t.Errorf("wrong: %v", res.Wrong)
	}
	for why, other := range map[string]*result{"build": {Build: "y", Focus: "f"}, "focus": {Build: "x"}, "settings": {Build: "x", Focus: "f", Settings: settings{Mode: "DSR"}},
		"groups": {Build: "x", Focus: "f", Groups: "main"}, "installation": {Build: "x", Focus: "f", Settings: settings{Install: "--fanout=always"}}} {
		if other.resume(path) == nil {
			t.Errorf("it goes on with another %s", why)
		}
	}
	if err := (&result{}).resume(path + ".not"); err != nil {
		t.Error(err)
	}
}

func TestLabs(t *testing.T) {
	g := func(name string, workers, procs int, alongside bool) task {
		return task{group: group{Name: name, Workers: workers, Procs: procs, Alongside: alongside}}
	}
	var got []string
	for _, l := range labs([]task{g("main", 3, 0, false), g("zones", 6, 0, false), g("alone", 3, 1, false), g("long", 3, 2, true)}) {
		for _, t := range l {
			got = append(got, t.Name)
		}
		got = append(got, "|")
	}
	if want := "long main alone | zones |"; strings.Join(got, " ") != want {
		t.Errorf("got %v, want %s", got, want)
	}
}

func TestBGPLabs(t *testing.T) {
	o := options{proxy: "weir", repeat: 1, procs: 1, conformance: true, settings: settings{BGP: true}}
	if err := o.check(); err != nil || o.defaultOut() != "out/e2e-conformance-bgp.json" {
		t.Errorf("%v, %s", err, o.defaultOut())
	}
	if args := (&lab{name: "l"}).upArgs(group{Workers: 2, Plain: true}, o.settings, "weir"); !slices.Contains(args, "--bgp") {
		t.Errorf("the lab is %v", args)
	}
	if o.proxy = "kube-proxy-nftables"; o.check() == nil {
		t.Error("a lab without Weir is taken")
	}
}

func TestWireGuardLabs(t *testing.T) {
	o := options{proxy: "weir", repeat: 1, procs: 1, conformance: true, settings: settings{WireGuard: true}}
	if err := o.check(); err != nil || o.defaultOut() != "out/e2e-conformance-wireguard.json" {
		t.Errorf("%v, %s", err, o.defaultOut())
	}
	if args := (&lab{name: "l"}).upArgs(group{Workers: 2, Plain: true}, o.settings, "weir"); !slices.Contains(args, "--install-arg=--wireguard-go") {
		t.Errorf("the lab is %v", args)
	}
	if patch := o.settings.patch(); patch != `{"spec":{"wireguardEnabled":true,"wireguardEnabledV6":true}}` {
		t.Errorf("FelixConfiguration gets %s", patch)
	}
	if o.proxy = "kube-proxy-nftables"; o.check() == nil {
		t.Error("a lab without Weir is taken")
	}
}

func TestInstallArguments(t *testing.T) {
	for install, ok := range map[string]bool{"": true, "--fanout=always": true, " --fanout=always  --vxlan-mode=Always ": true, "always": false, "--fanout always": false, "-v": false} {
		if err := (options{proxy: "weir", repeat: 1, procs: 1, settings: settings{Install: install}}).check(); (err == nil) != ok {
			t.Errorf("--install=%q: %v", install, err)
		}
	}
	o := options{proxy: "weir+kube-proxy-nftables", repeat: 1, procs: 1, conformance: true, settings: settings{Install: "--fanout=always --vxlan-mode=Always"}}
	if err := o.check(); err != nil {
		t.Error(err)
	}
	if got, want := o.defaultOut(), "out/e2e-conformance-fanout-always-vxlan-mode-always-weir+kube-proxy-nftables.json"; got != want {
		t.Errorf("the result goes to %s, want %s", got, want)
	}
	if o.proxy = "kube-proxy-nftables"; o.check() == nil {
		t.Error("arguments of weir install are taken for labs without Weir")
	}
	if o.settings.Install = ""; o.check() != nil {
		t.Error("a lab without Weir is refused")
	}
	s := settings{Install: "--fanout=always --vxlan-mode=Always"}
	got := strings.Join((&lab{name: "l"}).upArgs(group{Workers: 2, Plain: true}, s, "weir"), " ")
	if want := "up --name l --proxy weir --workers 2 --install-arg=--fanout=always --install-arg=--vxlan-mode=Always"; got != want {
		t.Errorf("weir-lab %s\nwant     %s", got, want)
	}
	if s.patch() != "" {
		t.Errorf("nothing of FelixConfiguration is set, and it is patched with %s", s.patch())
	}
	if got := (settings{Mode: "DSR", DataPlane: planeMixed, Install: "--fanout=always"}).patch(); got != `{"spec":{"bpfExternalServiceMode":"DSR"}}` {
		t.Errorf("FelixConfiguration is patched with %s", got)
	}
}

// TestIPv6: labs of IPv6 alone leave out what is about IPv4 or both.
func TestIPv6(t *testing.T) {
	o := options{proxy: "weir", procs: 1, repeat: 1, conformance: true, settings: settings{Family: "ipv6"}}
	if err := o.check(); err != nil || o.defaultOut() != "out/e2e-conformance-ipv6.json" {
		t.Errorf("%v, %s", err, o.defaultOut())
	}
	if args := strings.Join((&lab{name: "a"}).upArgs(group{Plain: true, Workers: 2}, o.settings, o.proxy), " "); args != "up --name a --proxy weir --workers 2 --ip-family ipv6" {
		t.Errorf("weir-lab %s", args)
	}
	left := lacking(onIPv6, []string{"[sig-network] [Feature:IPv6DualStack] should c", "[sig-network] Networking [Feature:Networking-IPv6] should d", "[sig-network] Networking [Feature:Networking-IPv4] should e"})
	if len(left) != 2 || left[0].Reason != "family" {
		t.Errorf("%v are left out", left)
	}
	for _, s := range []settings{{Family: "dual"}, {Family: "ipv6", On: "generic"}} {
		if o.settings = s; o.check() == nil {
			t.Errorf("%+v was accepted", s)
		}
	}
}

// TestOn: the labs of other CNI plugins leave out what they have nothing for, and nothing else.
func TestOn(t *testing.T) {
	specs := []string{
		"[sig-network] LoadBalancers [Feature:LoadBalancer] should a", "[sig-network] Netpol NetworkPolicy between server and client should b",
		"[sig-network] Services should serve endpoints on same port and different protocol for internal traffic on Type LoadBalancer ",
		"[sig-network] Services should be able to create a functioning NodePort service [Conformance]", "[sig-network] [Feature:IPv6DualStack] should c",
	}
	for on, want := range map[string][]string{"": nil, "generic": nil, "aws-vpc-cni": {"0 address", "2 address", "4 family"}} {
		var got []string
		for _, s := range lacking(lacks[on], specs) {
			got = append(got, fmt.Sprintf("%d %s", slices.Index(specs, s.Name), s.Reason))
		}
		if !slices.Equal(got, want) {
			t.Errorf("on %q: %v are left out, want %v", on, got, want)
		}
	}
	for _, o := range []options{
		{proxy: "weir", settings: settings{On: "flannel"}}, {proxy: "none", settings: settings{On: "generic"}}, {proxy: "weir", settings: settings{On: "generic", BGP: true}},
	} {
		if o.procs, o.repeat = 1, 1; o.check() == nil {
			t.Errorf("%+v was accepted", o)
		}
	}
	o := options{proxy: "weir", procs: 1, repeat: 1, conformance: true, settings: settings{On: "aws-vpc-cni"}}
	if err := o.check(); err != nil || o.defaultOut() != "out/e2e-conformance-on-aws-vpc-cni.json" {
		t.Errorf("%v, %s", err, o.defaultOut())
	}
	if args := strings.Join((&lab{name: "a"}).upArgs(group{Plain: true, Workers: 2}, o.settings, o.proxy), " "); args != "up --name a --proxy weir --workers 2 --on aws-vpc-cni" {
		t.Errorf("weir-lab %s", args)
	}
}
