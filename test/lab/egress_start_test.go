// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lab

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/model"
)

var (
	egressAdds    = flag.Int("egress-adds", 1000, "TestEgressAtStart: calls of the CNI plugin with eBPF, a tenth of it with nftables")
	egressKubelet = flag.Int("egress-pods", 30, "TestEgressAtStart: pods of kubelet with eBPF, a tenth of it with nftables")
	egressChanges = flag.Int("egress-changes", 100, "TestEgressAtStart: changes of gateways at least, with eBPF, a tenth of it with nftables")
)

const (
	startUDP, startTCP = 9321, 9322
	// addPods are the pods that the plugin is called for, again and again.
	addPods = 40
	// atOnce is how many pods kubelet starts at the same time.
	atOnce = 30
)

// atStart are the clients of TestEgressAtStart, all on worker1, and their gateways.
type atStart struct {
	*base
	outside  *place
	gateways []string // pods
	right    map[string]bool
}

// TestEgressAtStart: pods that leave by gateways alone send from their first moment on, while
// gateways change: out of network namespaces that the CNI plugin is called for directly, and as
// programs that kubelet starts. Outside every packet is seen as it comes, and none may have another
// address than a gateway's node.
func TestEgressAtStart(t *testing.T) {
	b := sharedBase(t)
	b.patchFelix(t, `{"egressIPSupport":"EnabledPerNamespaceOrPerPod"}`, "egressIPSupport")
	b.mustKubectl(t, "", "annotate", "namespace", b.ns, model.AnnotationEgressClients+"=projectcalico.org/name == '"+b.ns+"'")
	t.Cleanup(func() { b.mustKubectl(t, "", "annotate", "namespace", b.ns, model.AnnotationEgressClients+"-") })
	a := &atStart{base: b, outside: b.client(1), gateways: []string{"out-cp", "out-worker2"}, right: map[string]bool{cpAddr: true, worker2Addr: true}}
	for i, node := range []string{"cp", "worker2"} {
		p := b.server(a.gateways[i], node, map[string]string{"egress": "red"})
		p.Annotations[model.AnnotationEgressGateway] = "true"
		b.start(t, p)
	}
	a.outside.begin(t, "server", "--until-stdin-ends", "--name", "out", fmt.Sprintf("--who=%d", startTCP), fmt.Sprintf("--udp=%d", startUDP))
	client := b.start(t, a.leaves(b.idle("leaver", "worker1", nil)))[0]
	a.create(t)
	for _, c := range []struct {
		plane, enabled string
		share          int
	}{{"eBPF", "true", 1}, {"nftables", "false", 10}} {
		t.Run(c.plane, func(t *testing.T) {
			figures.begin(t)
			b.patchFelix(t, `{"bpfEnabled":`+c.enabled+`}`, "bpfEnabled")
			b.awaitPlane(t, c.plane)
			eventually(t, time.Minute, "it leaves by a gateway", func() error {
				r, err := client.tryDial(at(a.outside.addr, startTCP), 1, "--timeout", "1s")
				if err == nil && (len(r.Seen) != 1 || !a.right[r.Seen[0]]) {
					err = fmt.Errorf("it leaves by %v", r)
				}
				return err
			})
			a.play(t, *egressAdds/c.share, *egressKubelet/c.share, *egressChanges/c.share)
		})
	}
}

// leaves makes a pod a client.
func (a *atStart) leaves(p *corev1.Pod) *corev1.Pod {
	p.Annotations[model.AnnotationEgressSelector] = "egress == 'red'"
	return p
}

// create makes the pods that the plugin is called for: kubelet waits for a volume of theirs that
// never comes.
func (a *atStart) create(t *testing.T) {
	t.Helper()
	var wg sync.WaitGroup
	for i := range addPods {
		p := a.leaves(a.idle(fmt.Sprintf("add-%d", i), "worker1", nil))
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "never", VolumeSource: corev1.VolumeSource{
			ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "never"}}}})
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, corev1.VolumeMount{Name: "never", MountPath: "/never"})
		wg.Go(func() {
			if _, err := a.kube.CoreV1().Pods(a.ns).Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// startedResult is what traffic's adds says.
type startedResult struct {
	Adds         int       `json:"adds"`
	Early        int       `json:"early"`
	EarlyOpened  int       `json:"early_opened"`
	OpenedAtOnce int       `json:"opened_at_once"`
	Add          []float64 `json:"add_ms"`
}

// sourcesResult is what traffic's sources says.
type sourcesResult struct {
	By     map[string]int `json:"by"`
	Named  map[string]int `json:"named"`
	Missed uint32         `json:"missed"`
}

// play does all of it with the data plane at hand.
func (a *atStart) play(t *testing.T, adds, pods, changes int) {
	heard := a.outside.begin(t, "sources", fmt.Sprintf("--udp=%d", startUDP), fmt.Sprintf("--tcp=%d", startTCP))
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	changed := make(chan int, 1)
	go func() { changed <- a.changes(ctx, t, changes) }()

	var sum startedResult
	to := []string{"--udp", at(a.outside.addr, startUDP), "--tcp", at(a.outside.addr, startTCP)}
	for left := adds; left > 0; left -= addPods * 5 { // a call of the lab's program takes five minutes at most
		out := a.must(t, "worker1", append([]string{a.traffic, "adds", "--namespace", a.ns, "--prefix", "add", "--pods", fmt.Sprint(addPods), "--count", fmt.Sprint(min(left, addPods*5))}, to...)...)
		var res startedResult
		if err := json.Unmarshal([]byte(out), &res); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		sum.Adds, sum.Early, sum.EarlyOpened, sum.OpenedAtOnce = sum.Adds+res.Adds, sum.Early+res.Early, sum.EarlyOpened+res.EarlyOpened, sum.OpenedAtOnce+res.OpenedAtOnce
		sum.Add = append(sum.Add, res.Add...)
	}
	first, later := a.byKubelet(t, pods, to)
	stop()
	made := <-changed
	got := result[sourcesResult](t, heard)

	wrong, all := 0, 0
	for what, n := range got.By {
		if all += n; !a.right[strings.Fields(what)[0]] {
			wrong += n
			t.Errorf("%d packets came from an address that is no gateway's node: %s", n, what)
		}
	}
	if got.Missed > 0 {
		t.Errorf("%d packets were not looked at", got.Missed)
	}
	if sum.Adds != adds || made < changes || all == 0 {
		t.Errorf("%d of %d calls, %d of %d changes, %d packets", sum.Adds, adds, made, changes, all)
	}
	note(t, "wrong egress addresses", float64(wrong))
	note(t, "packets that were seen outside", float64(all))
	note(t, "CNI ADDs", float64(sum.Adds))
	note(t, "CNI ADDs: p50 (ms)", percentile(sum.Add, 0.5))
	note(t, "CNI ADDs: p99 (ms)", percentile(sum.Add, 0.99))
	note(t, "pods of kubelet", float64(pods))
	note(t, "changes of gateways", float64(made))
	note(t, "sent before ADD had ended", float64(sum.Early))
	note(t, "datagrams before ADD had ended that were lost", float64(sum.Early-got.Named["early"]))
	note(t, "first SYNs before ADD had ended that were lost", float64(sum.Early-sum.EarlyOpened))
	note(t, "datagrams at the end of ADD that were lost", float64(sum.Adds-got.Named["after"]))
	note(t, "first SYNs at the end of ADD that were lost", float64(sum.Adds-sum.OpenedAtOnce))
	note(t, "first datagrams of pods that were lost", float64(pods-got.Named["pod"]))
	note(t, "first SYNs of pods that were lost", float64(pods-first))
	if first+later != pods {
		t.Errorf("of %d pods %d opened a connection by their first SYN, %d by another one", pods, first, later)
	}
}

// changes takes gateways away and gives them back, until it is told to stop and as often as it has
// to. One is always there.
func (a *atStart) changes(ctx context.Context, t *testing.T, least int) (made int) {
	for n := 0; n < least || ctx.Err() == nil; n++ {
		label := "blue"
		if n%2 == 1 {
			label = "red"
		}
		patch := fmt.Sprintf(`{"metadata":{"labels":{"egress":%q}}}`, label)
		if _, err := a.kube.CoreV1().Pods(a.ns).Patch(context.Background(), a.gateways[n/2%2], types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Error(err)
			return made
		}
		made++
		select {
		case <-ctx.Done():
			time.Sleep(200 * time.Millisecond)
		case <-time.After(time.Second):
		}
	}
	if made%2 == 1 {
		patch := []byte(`{"metadata":{"labels":{"egress":"red"}}}`)
		if _, err := a.kube.CoreV1().Pods(a.ns).Patch(context.Background(), a.gateways[(made-1)/2%2], types.StrategicMergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
		made++
	}
	return made
}

// byKubelet starts pods, some at a time, whose programs send at once. It returns how many opened a
// connection by their first SYN, and by another one.
func (a *atStart) byKubelet(t *testing.T, count int, to []string) (first, later int) {
	t.Helper()
	for begun := 0; begun < count; begun += atOnce {
		n := min(atOnce, count-begun)
		prefix := fmt.Sprintf("first%d-", begun)
		for i := range n {
			a.base.create(t, a.leaves(a.podSpec(fmt.Sprint(prefix, i), "worker1", append([]string{"/t/traffic", "first", "--name", fmt.Sprint(begun + i)}, to...), nil)))
		}
		codes := a.exitCodes(t, n, prefix)
		for name, code := range codes {
			switch code {
			case 3:
				first++
			case 4:
				later++
			default:
				t.Errorf("pod %s ended with code %d", name, code)
			}
		}
		now := int64(0)
		for name := range codes {
			if err := a.kube.CoreV1().Pods(a.ns).Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
				t.Error(err)
			}
		}
	}
	return first, later
}
