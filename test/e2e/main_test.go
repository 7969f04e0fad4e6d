package main

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

const report = `<?xml version="1.0"?><testsuites><testsuite>
<testcase name="[SynchronizedBeforeSuite]" status="passed"></testcase>
<testcase name="[It] [sig-network] a" status="passed"></testcase>
<testcase name="[It] [sig-network] b" status="failed"><failure message="x"></failure></testcase>
<testcase name="[It] [sig-network] c" status="skipped"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`

func TestReadReports(t *testing.T) {
	dir := t.TempDir()
	if _, err := readReports(dir); err == nil {
		t.Error("an empty folder gave no error")
	}
	if err := os.WriteFile(filepath.Join(dir, "junit_01.xml"), []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	res, err := readReports(dir)
	if err != nil {
		t.Fatal(err)
	}
	if res.Passed != 1 || res.Failed != 1 || res.Skipped != 1 || !reflect.DeepEqual(res.Failures, []string{"[sig-network] b"}) {
		t.Errorf("%+v", res)
	}
}

func TestJudge(t *testing.T) {
	res := &Result{Failures: []string{"a", "b"}}
	unexpected, recovered := judge(res, []string{"b", "c"})
	if !reflect.DeepEqual(unexpected, []string{"a"}) || !reflect.DeepEqual(recovered, []string{"c"}) || !reflect.DeepEqual(res.Known, []string{"b"}) {
		t.Errorf("unexpected %v, recovered %v, known %v", unexpected, recovered, res.Known)
	}
}
