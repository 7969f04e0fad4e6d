// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/deploy"
	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/bench/store"
	"github.com/weir-net/weir/internal/fanout/names"
	"github.com/weir-net/weir/internal/fanout/report"
	"github.com/weir-net/weir/internal/peerauth"
)

// cgroupEnv is the control group whose sockets are the node's.
const cgroupEnv = "WEIR_BENCH_CLUSTER_CGROUP"

// Where the fan-outs answer: agents, and questions about themselves.
var (
	fanOutAddrs   = []string{"10.200.1.1", "10.200.1.2"}
	fanOutHealths = []string{"127.0.0.1:9195", "127.0.0.1:9196"}
)

const (
	standInsAddr = "127.0.0.1:9190"
	sampled      = 10 // stand-ins that keep what they are sent
)

// site is everything of one size. It is what apitest takes for a test.
type site struct {
	*world
	dir     string
	bin     string
	cgroup  string
	ctx     context.Context
	cleanup []func()
	server  *apitest.Server
	kube    kubernetes.Interface
	result  Result

	fanOuts  []*process
	standIns *process
	agent    *process
	pod      *thread // the target's namespace
	remote   *thread // what is behind the node's uplink
	probe    prober

	directSince time.Time
	everyone    *networkingv1.NetworkPolicy // that of a load which is there
	rate        int                         // pods that change each second, at most, so that the machine is not too busy; 0 = none
}

func newSite(o options, dir string) *site {
	return &site{world: newWorld(o, o.sizes[0]), dir: dir, bin: filepath.Dir(dir), cgroup: os.Getenv(cgroupEnv), ctx: context.Background()}
}

// failure is what ends a run.
type failure struct{ error }

// Helper, Fatal, Fatalf, TempDir and Cleanup are what apitest needs.
func (s *site) Helper() {}

func (s *site) Fatal(args ...any) { panic(failure{errors.New(fmt.Sprint(args...))}) }

func (s *site) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

func (s *site) TempDir() string {
	dir, err := os.MkdirTemp(s.dir, "apiserver-")
	s.must(err)
	return dir
}

func (s *site) Cleanup(f func()) { s.cleanup = append(s.cleanup, f) }

func (s *site) must(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// run measures, and writes what it has measured after each part.
func (s *site) run() (err error) {
	defer func() {
		for _, f := range slices.Backward(s.cleanup) {
			f()
		}
	}()
	defer func() {
		if f, ok := recover().(failure); ok {
			err = f.error
			for _, p := range []*process{s.agent, s.standIns} {
				if p != nil {
					err = fmt.Errorf("%w\n%s", err, p.tail())
				}
			}
		}
	}()
	s.begin()
	s.install()
	s.fill()
	s.startFanOuts()
	s.startStandIns()
	s.measureAgent(true)
	if s.away > 0 {
		s.apiServerAway()
	}
	s.lose()
	if s.grown > 0 && !s.brief {
		s.result.Grown = &Grown{Policies: s.grown}
		s.growPolicies(s.result.Grown, true)
	}
	if s.direct {
		s.standIns.kill()
		for _, p := range s.fanOuts {
			p.kill()
		}
		s.agent.stop() // before the count of watches without a fan-out begins
		s.directSince = time.Now()
		s.measureAgent(false)
		if s.grown > 0 && !s.brief {
			s.result.GrownDirect = &Grown{Policies: s.grown}
			s.growPolicies(s.result.GrownDirect, false)
		}
	}
	s.countWatches()
	s.save()
	return nil
}

// install starts the API server and installs what Weir needs there.
func (s *site) install() {
	audit := filepath.Join(s.dir, "audit.yaml")
	s.must(os.WriteFile(audit, []byte(`{"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["ResponseStarted", "ResponseComplete", "Panic"],
"rules": [{"level": "Metadata", "verbs": ["watch"]}, {"level": "None"}]}`), 0o644))
	s.server = apitest.Start(s, "--disable-admission-plugins=ServiceAccount", "--audit-policy-file="+audit, "--audit-log-path="+s.auditLog(),
		"--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000")
	s.kube = s.server.Clients.Kube
	objects, err := deploy.Objects(deploy.Defaults())
	s.must(err)
	for _, u := range objects {
		if kind := u.GetKind(); kind == "CustomResourceDefinition" || kind == "ServiceAccount" || (u.GetName() == peerauth.ObjectName || u.GetName() == report.ConfigMap) && (kind == "Secret" || kind == "ConfigMap") {
			s.server.Create(u)
		}
	}
	pool := &unstructured.Unstructured{}
	s.must(yaml.Unmarshal(fmt.Appendf(nil, `{apiVersion: projectcalico.org/v3, kind: IPPool, metadata: {name: %s},
spec: {cidr: %s, blockSize: %d, vxlanMode: Never, ipipMode: Never}}`, poolName, poolCIDR, blockBits), &pool.Object))
	s.server.Create(pool)
	bundle, err := (&peerauth.Keeper{Kube: s.kube, Namespace: names.Namespace, Domain: names.Namespace + ".svc", Now: time.Now}).Ensure(s.ctx)
	s.must(err)
	s.must(os.Mkdir(s.peers(), 0o755))
	s.must(os.WriteFile(filepath.Join(s.peers(), "ca.crt"), bundle, 0o644))
	say("the API server is ready")
}

func (s *site) peers() string    { return filepath.Join(s.dir, "peers") }
func (s *site) auditLog() string { return filepath.Join(s.dir, "audit.log") }

// fill writes the objects of the cluster.
func (s *site) fill() {
	began := time.Now()
	etcd := store.Store{URL: apitest.Etcd, HTTP: http.DefaultClient}
	s.must(etcd.Put(s.ctx, s.objects(), func(done int) { say("wrote %d objects", done) }))
	s.must(etcd.Make(s.ctx, s.serviceObjects(), func(done int) { say("wrote %d Services", done) }))
	say("wrote %d nodes, %d pods, %d policies, %d Services in %.1f s (seed %d)", s.nodes, len(s.pods), s.policies, s.services, time.Since(began).Seconds(), s.seed)
	s.result = Result{Nodes: s.nodes, Pods: len(s.pods), Policies: s.policies, Services: s.services, Seed: s.seed, FillSeconds: time.Since(began).Seconds()}
	s.result.about()
	s.makeTarget()
}

// token returns the token of the agent of a node, as its kubelet would ask for it.
func (s *site) token(i int) (string, error) {
	pod, err := s.kube.CoreV1().Pods(names.Namespace).Get(s.ctx, agentName(i), metav1.GetOptions{ResourceVersion: "0"})
	if err != nil {
		return "", err
	}
	life := int64(7200)
	got, err := s.kube.CoreV1().ServiceAccounts(names.Namespace).CreateToken(s.ctx, agentAccount, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		Audiences: []string{names.ServerName}, ExpirationSeconds: &life, BoundObjectRef: &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}}}, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	return got.Status.Token, nil
}

// startFanOuts starts both replicas, one after the other, and says where they are.
func (s *site) startFanOuts() {
	ready := true
	port, name, proto := int32(names.Port), "agents", corev1.ProtocolTCP
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: names.Namespace, Name: names.Slice, Annotations: map[string]string{names.WantedAnnotation: "2"}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: &name, Protocol: &proto, Port: &port}}}
	for i, addr := range fanOutAddrs {
		began := time.Now()
		args := []string{"-kubeconfig", s.server.Kubeconfig(), "-addr", addr + ":" + strconv.Itoa(names.Port), "-health-addr", fanOutHealths[i]}
		if s.interval > 0 {
			args = append(args, "-interval", s.interval.String())
		}
		p := s.start(fmt.Sprint("fanout-", i+1), []string{fmt.Sprint("POD_NAME=fanout-", i+1)}, filepath.Join(s.bin, "weir-fanout"), args...)
		s.fanOuts = append(s.fanOuts, p)
		s.await("fan-out "+addr, p, 5*time.Minute, func() bool { return healthy(fanOutHealths[i]) })
		used, err := p.cpu()
		s.must(err)
		rss, _, _ := p.memory()
		say("fan-out %d is ready after %.1f s (%.1f s of CPU), %.0f MiB", i+1, time.Since(began).Seconds(), used.Seconds(), rss)
		s.result.FanOutStartSeconds = append(s.result.FanOutStartSeconds, time.Since(began).Seconds())
		s.result.FanOutStartCPU = append(s.result.FanOutStartCPU, used.Seconds())
		s.result.FanOutIdleRSS = append(s.result.FanOutIdleRSS, rss)
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	_, err := s.kube.DiscoveryV1().EndpointSlices(names.Namespace).Create(s.ctx, slice, metav1.CreateOptions{})
	s.must(err)
}

func healthy(addr string) bool {
	resp, err := http.Get("http://" + addr + "/readiness")
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// startStandIns has the stand-ins of all nodes but ours come within the time that is allowed.
func (s *site) startStandIns() {
	conf := standIns{Peers: s.peers(), Listen: standInsAddr, Stagger: 45 * time.Second * time.Duration(min(s.nodes, 1000)) / 1000, Nodes: make([]standInNode, s.nodes-1)}
	for _, a := range fanOutAddrs {
		conf.Replicas = append(conf.Replicas, a+":"+strconv.Itoa(names.Port))
	}
	began := time.Now()
	g := errgroup.Group{}
	g.SetLimit(16)
	for i := range conf.Nodes {
		g.Go(func() error {
			token, err := s.token(i + 1)
			conf.Nodes[i] = standInNode{Node: nodeName(i + 1), Token: token, Source: source(i + 1).String(), Model: i < sampled}
			return err
		})
	}
	s.must(g.Wait())
	text, err := s.token(0)
	s.must(err)
	s.must(os.WriteFile(filepath.Join(s.peers(), "fanout-token"), []byte(text), 0o600))
	say("made %d tokens in %.1f s", s.nodes, time.Since(began).Seconds())
	file := filepath.Join(s.dir, "stand-ins.json")
	b, err := json.Marshal(conf)
	s.must(err)
	s.must(os.WriteFile(file, b, 0o600))
	w := s.openWindow()
	s.standIns = s.start("stand-ins", []string{"GOGC=50"}, "/proc/self/exe", standInsCommand, file)
	reported := time.Now()
	s.await("the stand-ins' snapshots", s.standIns, 10*time.Minute, func() bool {
		st, err := s.standInState()
		if err == nil && time.Since(reported) > 5*time.Second {
			reported = time.Now()
			say("%d of %d stand-ins have started, %d have their snapshot (%s)", st.Started, s.nodes-1, st.Whole, st.LastError)
		}
		return err == nil && st.AllAfter > 0
	})
	st, err := s.standInState()
	s.must(err)
	row := s.closeWindow(w, "start of all agents")
	s.result.Rows = append(s.result.Rows, row)
	s.result.StartAllSeconds = st.AllAfter.Seconds()
	s.result.BytesSnapshot = float64(st.Bytes) / float64(max(1, st.Snapshots))
	say("all stand-ins have their snapshots after %.1f s; %.0f kB each", st.AllAfter.Seconds(), s.result.BytesSnapshot/1000)
	s.save()
}

func (s *site) standInState() (st standInState, err error) {
	return st, ask("http://"+standInsAddr+"/state", &st)
}

func ask(url string, into any) error {
	resp, err := http.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, resp.Status)
	}
	return json.NewDecoder(resp.Body).Decode(into)
}

// await waits for what a process is to do.
func (s *site) await(what string, p *process, limit time.Duration, check func() bool) {
	for end := time.Now().Add(limit); !check(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			s.Fatalf("waited %s in vain for %s\n%s", limit, what, p.tail())
		}
	}
}
