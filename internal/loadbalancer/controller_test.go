// SPDX-License-Identifier: Apache-2.0

package loadbalancer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	kubefake "k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/apitest"
)

type fixture struct {
	t       *testing.T
	kube    *kubefake.Clientset
	dynamic *dynamicfake.FakeDynamicClient
}

func newFixture(t *testing.T, objects ...runtime.Object) *fixture {
	f := &fixture{t: t, kube: kubefake.NewClientset(objects...)}
	calico := v3.SchemeGroupVersion.WithResource
	compareVersions(&f.kube.Fake, corev1.Resource("services"))
	f.dynamic = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		calico("ippools"): "IPPoolList", calico("ipreservations"): "IPReservationList",
		calico("kubecontrollersconfigurations"): "KubeControllersConfigurationList", weirv1.IPAMBlocks: "IPAMBlockList"})
	return f
}

// start runs a controller; a second call is a second one, alongside the first unless that was
// stopped.
func (f *fixture) start() (stop func()) {
	ctx, cancel := context.WithCancel(f.t.Context())
	c := New(Config{Kube: f.kube, Dynamic: f.dynamic, Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Settle: time.Millisecond, Resync: 300 * time.Millisecond})
	done, all := make(chan struct{}), f.watches()+len(newSources(c.cfg).informers)
	go func() { defer close(done); c.Run(ctx) }()
	// What is created between an informer's list and its watch the fake server never reports.
	apitest.Eventually(f.t, 10*time.Second, "the watches", func() error {
		if n := f.watches(); n < all {
			return fmt.Errorf("%d of %d", n, all)
		}
		return nil
	})
	stop = func() { cancel(); <-done }
	f.t.Cleanup(stop)
	return stop
}

func (f *fixture) watches() int {
	n := 0
	for _, a := range slices.Concat(f.kube.Actions(), f.dynamic.Actions()) {
		if a.GetVerb() == "watch" {
			n++
		}
	}
	return n
}

func (f *fixture) pool(name, cidr string, spec map[string]any) {
	f.t.Helper()
	if spec == nil {
		spec = map[string]any{}
	}
	spec["cidr"] = cidr
	if spec["allowedUses"] == nil {
		spec["allowedUses"] = []any{"LoadBalancer"}
	}
	f.create("ippools", apitest.Object("projectcalico.org/v3", "IPPool", name, spec))
}

func (f *fixture) create(resource string, o any) {
	f.t.Helper()
	u := o.(interface{ DeepCopyObject() runtime.Object }).DeepCopyObject()
	if err := f.dynamic.Tracker().Create(v3.SchemeGroupVersion.WithResource(resource), u, ""); err != nil {
		f.t.Fatal(err)
	}
}

func balancer(name string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID("uid-" + name), Annotations: map[string]string{}},
		Spec: corev1.ServiceSpec{Type: corev1.ServiceTypeLoadBalancer, ClusterIP: "10.96.0.1", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}}}
	for _, c := range change {
		c(s)
	}
	return s
}

func annotated(key, value string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Annotations[key] = value }
}

func ofClass(class string) func(*corev1.Service) {
	return func(s *corev1.Service) { s.Spec.LoadBalancerClass = &class }
}

func dual(policy corev1.IPFamilyPolicy) func(*corev1.Service) {
	return func(s *corev1.Service) {
		s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol, corev1.IPv4Protocol}
		s.Spec.IPFamilyPolicy = &policy
	}
}

func (f *fixture) add(s *corev1.Service) {
	f.t.Helper()
	if _, err := f.kube.CoreV1().Services(s.Namespace).Create(f.t.Context(), s, metav1.CreateOptions{}); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) get(name string) *corev1.Service {
	f.t.Helper()
	s, err := f.kube.CoreV1().Services("ns").Get(f.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

func ingress(s *corev1.Service) string {
	var out []string
	for _, in := range s.Status.LoadBalancer.Ingress {
		out = append(out, in.IP)
	}
	return strings.Join(out, " ")
}

// has waits until the Service has exactly these addresses.
func (f *fixture) has(name, want string) {
	f.t.Helper()
	apitest.Eventually(f.t, 5*time.Second, name+" has "+want, func() error {
		if got := ingress(f.get(name)); got != want {
			return fmt.Errorf("it has %q, %+v", got, f.get(name).Status.Conditions)
		}
		return nil
	})
}

// lacks waits until the Service's condition, and an event, say why it has no address.
func (f *fixture) lacks(name, why string) {
	f.t.Helper()
	apitest.Eventually(f.t, 5*time.Second, name+" lacks an address: "+why, func() error {
		c := apimeta.FindStatusCondition(f.get(name).Status.Conditions, Condition)
		if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, why) {
			return fmt.Errorf("condition %+v, addresses %q", c, ingress(f.get(name)))
		}
		events, err := f.kube.CoreV1().Events("ns").List(f.t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == name && e.Type == corev1.EventTypeWarning && strings.Contains(e.Message, why)
		}) {
			return errors.New("no event")
		}
		return nil
	})
}

// held returns what the blocks say, "address service" each.
func (f *fixture) held() []string {
	list, err := New(Config{Kube: f.kube, Dynamic: f.dynamic, Log: slog.Default()}).blocks.List(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	var out []string
	for _, b := range list {
		for _, a := range b.Spec.Allocations {
			out = append(out, a.Address+" "+a.Service)
		}
	}
	slices.Sort(out)
	return out
}

func (f *fixture) eventuallyHeld(want ...string) {
	f.t.Helper()
	apitest.Eventually(f.t, 5*time.Second, "the blocks hold "+fmt.Sprint(want), func() error {
		if got := f.held(); !slices.Equal(got, want) {
			return fmt.Errorf("%v", got)
		}
		return nil
	})
}

func TestGivesAndTakesBack(t *testing.T) {
	f := newFixture(t)
	f.pool("pods", "10.244.0.0/16", map[string]any{"allowedUses": []any{"Workload"}})
	f.pool("lb", "192.0.2.0/29", map[string]any{"blockSize": int64(30)})
	f.start()
	f.add(balancer("a"))
	f.has("a", "192.0.2.1") // .0 is left alone
	if in := f.get("a").Status.LoadBalancer.Ingress[0]; in.IPMode == nil || *in.IPMode != corev1.LoadBalancerIPModeVIP {
		t.Errorf("ipMode %v", in.IPMode)
	}
	f.add(balancer("b"))
	f.has("b", "192.0.2.2")
	for i := range 5 {
		f.add(balancer(fmt.Sprint("c", i)))
	}
	f.has("c4", "192.0.2.7")
	f.add(balancer("late"))
	f.lacks("late", "no free IPv4 address in IPPool lb")
	// Gone, and given to the one that waits.
	if err := f.kube.CoreV1().Services("ns").Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.has("late", "192.0.2.2")
	apitest.Eventually(t, 5*time.Second, "the condition is removed", func() error {
		if c := f.get("late").Status.Conditions; len(c) > 0 {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	f.change("a", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeClusterIP })
	apitest.Eventually(t, 5*time.Second, "the address of a is free", func() error {
		if got := fmt.Sprint(f.held()); strings.Contains(got, "ns/a") {
			return errors.New(got)
		}
		return nil
	})
}

func TestClassesAndModes(t *testing.T) {
	f := newFixture(t)
	f.pool("lb", "192.0.2.0/24", nil)
	f.add(balancer("foreign-class", ofClass("example.com/other")))
	f.add(balancer("cloud", func(s *corev1.Service) {
		s.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "203.0.113.9"}}
	}))
	f.add(balancer("our-class", ofClass(Class)))
	f.add(balancer("plain"))
	f.start()
	f.has("our-class", "192.0.2.1")
	f.has("plain", "192.0.2.2")
	f.create("kubecontrollersconfigurations", apitest.Object("projectcalico.org/v3", "KubeControllersConfiguration", "default",
		map[string]any{"controllers": map[string]any{"loadBalancer": map[string]any{"assignIPs": "RequestedServicesOnly"}}}))
	tries := 0
	apitest.Eventually(t, 5*time.Second, "only those that ask", func() error {
		// The plain one is there when the other is served, so it was looked at.
		tries++
		plain, asks := fmt.Sprint("plain-", tries), fmt.Sprint("asks-", tries)
		f.add(balancer(plain))
		f.add(balancer(asks, annotated(annotationPools4, `["lb"]`)))
		apitest.Eventually(t, 5*time.Second, "serving one that asks", func() error {
			if ingress(f.get(asks)) == "" {
				return errors.New("it has no address")
			}
			return nil
		})
		if got := ingress(f.get(plain)); got != "" {
			return fmt.Errorf("a Service that asks for nothing has %s", got)
		}
		return nil
	})
	f.has("plain", "192.0.2.2") // stays
	if got := ingress(f.get("foreign-class")); got != "" {
		t.Errorf("a Service of a foreign class got %s", got)
	}
	if got := ingress(f.get("cloud")); got != "203.0.113.9" {
		t.Errorf("the address of another controller became %s", got)
	}
}

func TestRequests(t *testing.T) {
	f := newFixture(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns", Labels: map[string]string{"team": "blue"}}})
	f.pool("a-red", "192.0.2.0/28", map[string]any{"namespaceSelector": "team == 'red'"})
	f.pool("b-manual", "198.51.100.0/28", map[string]any{"assignmentMode": "Manual"})
	f.pool("c-blue", "203.0.113.0/28", map[string]any{"namespaceSelector": "team == 'blue'"})
	f.pool("d-six", "2001:db8::/120", nil)
	f.create("ipreservations", apitest.Object("projectcalico.org/v3", "IPReservation", "r", map[string]any{"reservedCIDRs": []any{"203.0.113.1/32"}}))
	f.add(balancer("any"))
	f.add(balancer("field", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "203.0.113.9" }))
	f.add(balancer("list", dual(corev1.IPFamilyPolicyRequireDualStack), annotated(annotationAddrs, `["203.0.113.7","2001:db8::77"]`)))
	f.add(balancer("both", dual(corev1.IPFamilyPolicyPreferDualStack)))
	f.add(balancer("named", annotated(annotationPools4, `["b-manual"]`)))
	f.add(balancer("taken", func(s *corev1.Service) { s.CreationTimestamp = metav1.Now(); s.Spec.LoadBalancerIP = "203.0.113.9" }))
	f.add(balancer("outside", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "10.1.2.3" }))
	f.add(balancer("nonsense", annotated(annotationAddrs, `203.0.113.3`)))
	f.add(balancer("not-theirs", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "192.0.2.5" }))
	f.add(balancer("no-pool", annotated(annotationPools4, `["nothing"]`)))
	f.start()
	f.has("any", "203.0.113.2") // not the red pool, not the manual one, not the reserved address
	f.has("field", "203.0.113.9")
	f.has("list", "2001:db8::77 203.0.113.7")
	f.has("both", "2001:db8::1 203.0.113.3")
	f.has("named", "198.51.100.1")
	f.lacks("taken", "203.0.113.9 belongs to Service ns/field")
	f.lacks("outside", "10.1.2.3 lies in no usable IPPool")
	f.lacks("nonsense", "not a JSON list")
	f.lacks("not-theirs", "namespaceSelector does not match")
	f.lacks("no-pool", `no usable IPPool "nothing"`)
	// Another address is asked for: the old one is freed once the status names the new one.
	f.change("field", func(s *corev1.Service) { s.Spec.LoadBalancerIP = "203.0.113.10" })
	f.has("field", "203.0.113.10")
	f.has("taken", "203.0.113.9")
}

// A controller that starts anew gives nothing twice, keeps what was given, and finds what leaked
// meanwhile.
func TestRestart(t *testing.T) {
	f := newFixture(t)
	f.pool("lb", "192.0.2.0/26", nil)
	for i := range 10 {
		f.add(balancer(fmt.Sprint("s", i)))
	}
	stop := f.start()
	f.has("s9", "192.0.2.10")
	stop()
	if err := f.kube.CoreV1().Services("ns").Delete(t.Context(), "s3", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	f.add(balancer("new"))
	writes := len(f.kube.Actions())
	f.start()
	f.has("new", "192.0.2.4")
	want := []string{"192.0.2.4 ns/new"}
	for i := range 10 {
		if i != 3 {
			want = append(want, fmt.Sprintf("192.0.2.%d ns/s%d", i+1, i))
		}
	}
	slices.Sort(want)
	f.eventuallyHeld(want...)
	for _, a := range f.kube.Actions()[writes:] {
		u, ok := a.(clienttesting.UpdateAction)
		if !ok || a.GetResource().Resource != "services" {
			continue
		}
		if s := u.GetObject().(*corev1.Service); s.Name != "new" {
			t.Errorf("a restart wrote %s", s.Name)
		}
	}
}

// compareVersions lets the fake server refuse what was made from an old version, as a real one
// does.
func compareVersions(fake *clienttesting.Fake, kind schema.GroupResource) {
	versions := map[string]int{} // under the lock that Fake holds while reactors run
	fake.PrependReactor("*", kind.Resource, func(a clienttesting.Action) (bool, runtime.Object, error) {
		var o runtime.Object
		switch a := a.(type) {
		case clienttesting.CreateActionImpl:
			o = a.GetObject()
		case clienttesting.UpdateActionImpl:
			o = a.GetObject()
		default:
			return false, nil, nil
		}
		m, err := apimeta.Accessor(o)
		if err != nil {
			return true, nil, err
		}
		if a.GetVerb() == "create" && versions[m.GetName()] > 0 {
			return true, nil, apierrors.NewAlreadyExists(kind, m.GetName())
		}
		if m.GetResourceVersion() != "" && m.GetResourceVersion() != fmt.Sprint(versions[m.GetName()]) {
			return true, nil, apierrors.NewConflict(kind, m.GetName(), fmt.Errorf("version %s, now %d", m.GetResourceVersion(), versions[m.GetName()]))
		}
		versions[m.GetName()]++
		m.SetResourceVersion(fmt.Sprint(versions[m.GetName()]))
		return false, nil, nil
	})
}

// Two controllers that both believe to lead give no address twice: the block's version decides.
func TestTwoControllers(t *testing.T) {
	f := newFixture(t)
	f.pool("lb", "192.0.2.0/26", nil)
	compareVersions(&f.dynamic.Fake, weirv1.IPAMBlocks.GroupResource())
	f.start()
	f.start()
	for i := range 30 {
		f.add(balancer(fmt.Sprint("s", i)))
	}
	apitest.Eventually(t, 20*time.Second, "every Service has one address of its own", func() error {
		seen := map[string]string{}
		for i := range 30 {
			name := fmt.Sprint("s", i)
			a := ingress(f.get(name))
			if _, err := netip.ParseAddr(a); err != nil {
				return fmt.Errorf("%s has %q", name, a)
			}
			if seen[a] != "" {
				t.Fatalf("%s and %s both have %s", name, seen[a], a)
			}
			seen[a] = name
		}
		if got := f.held(); len(got) != 30 {
			return fmt.Errorf("%d held: %v", len(got), got)
		}
		return nil
	})
}

// An API server that refuses to write a block: nobody gets an address before it was entered.
func TestNothingIsGivenUnentered(t *testing.T) {
	f := newFixture(t)
	f.pool("lb", "192.0.2.0/26", nil)
	broken := true
	f.dynamic.PrependReactor("create", "ipamblocks", func(clienttesting.Action) (bool, runtime.Object, error) {
		if broken {
			return true, nil, errors.New("away")
		}
		return false, nil, nil
	})
	f.add(balancer("a"))
	stop := f.start()
	time.Sleep(300 * time.Millisecond)
	if got := ingress(f.get("a")); got != "" {
		t.Errorf("it has %s, which no block holds", got)
	}
	stop()
	broken = false
	f.start()
	f.has("a", "192.0.2.1")
}
