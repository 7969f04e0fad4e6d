// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weir-net/weir/internal/calc"
	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/nodestate"
	"github.com/weir-net/weir/internal/watch"
)

const (
	// listPage is how many objects are read at once: of pods and EndpointSlices there are many.
	listPage = 500
	// everyRounds is how often pods and EndpointSlices are read, in looks at the cluster: what
	// Services ask for themselves is found at each.
	everyRounds = 10
	// maxEvents bounds the events of one look: the next one writes further ones.
	maxEvents = 50
	// reasonRefused is the reason of events about Services.
	reasonRefused = "ServiceRefused"
)

// serviceRefusals keeps what is said of Services that ask for what they may not have. It is found
// by the code with which agents refuse it, for a cluster without a node of its own.
type serviceRefusals struct {
	rounds   int
	pods     *model.PodTable
	slices   map[model.Name]*model.EndpointSlice
	reported map[types.UID]string
}

// reportRefusals writes an event for each Service of which something is not in force, once for what
// is said of it.
func (c *Controller) reportRefusals(ctx context.Context) error {
	m, services, err := c.refusalCluster(ctx)
	if err != nil {
		return err
	}
	r := &c.refusals
	left, there := maxEvents, map[types.UID]bool{}
	var errs []error
	failed := map[string]bool{} // namespaces that take no event, for a quota or because they are going: others are not concerned
	refused := calc.Refusals(m)
	for _, name := range slices.SortedFunc(maps.Keys(services), func(a, b model.Name) int { return strings.Compare(a.String(), b.String()) }) {
		s := services[name]
		there[s.UID] = true
		message := refusalMessage(refused.At(nodestate.Object{Kind: "Service", Name: name}))
		if message == "" {
			delete(r.reported, s.UID)
			continue
		}
		if r.reported[s.UID] == message || left == 0 || failed[name.Namespace] {
			continue
		}
		if err := c.serviceEvent(ctx, s, reasonRefused, message); err != nil {
			errs = append(errs, err)
			failed[name.Namespace] = true
			continue
		}
		left--
		c.log.Warn("a Service asks for what it may not have", "service", name.String(), "reason", message)
		r.reported[s.UID] = message
	}
	maps.DeleteFunc(r.reported, func(uid types.UID, _ string) bool { return !there[uid] })
	return errors.Join(errs...)
}

// refusalMessage says what is not in force, "" where all is.
func refusalMessage(list []nodestate.Refusal) string {
	var words []string
	for _, r := range list {
		if !r.Allowed {
			words = append(words, r.Field+" "+r.Value+": "+r.Message+" ("+r.Action+")")
		}
	}
	return eventText(strings.Join(words, "; "))
}

// eventText shortens a message to what an event takes: 1,024 bytes.
func eventText(text string) string { return strings.ToValidUTF8(text[:min(len(text), 1000)], "") }

// serviceEvent writes a warning about a Service.
func (c *Controller) serviceEvent(ctx context.Context, s *corev1.Service, reason, message string) error {
	return c.warn(ctx, corev1.ObjectReference{APIVersion: "v1", Kind: "Service", Namespace: s.Namespace, Name: s.Name,
		UID: s.UID, ResourceVersion: s.ResourceVersion}, reason, message)
}

// warn writes an event about an object. Its name is made from what it says, so that another leader
// does not say it again.
func (c *Controller) warn(ctx context.Context, about corev1.ObjectReference, reason, message string) error {
	now := metav1.NewTime(c.now())
	sum := sha256.Sum256([]byte(string(about.UID) + "\n" + reason + "\n" + message))
	namespace := cmp.Or(about.Namespace, metav1.NamespaceDefault)
	_, err := c.cfg.Kube.CoreV1().Events(namespace).Create(ctx, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: fmt.Sprintf("%.230s.%x", about.Name, sum[:8]), Namespace: namespace},
		InvolvedObject: about, Reason: reason, Message: message, Type: corev1.EventTypeWarning, FirstTimestamp: now, LastTimestamp: now, Count: 1,
		Source: corev1.EventSource{Component: "weir-controller"},
	}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) && !apierrors.IsNotFound(err) { // its namespace may be going
		return fmt.Errorf("write event %s about %s %s: %w", reason, about.Kind, model.Name{Namespace: about.Namespace, Name: about.Name}, err)
	}
	return nil
}

// refusalCluster is the part of the cluster that decides what Services may have.
func (c *Controller) refusalCluster(ctx context.Context) (*model.Cluster, map[model.Name]*corev1.Service, error) {
	m, services := model.NewCluster(), map[model.Name]*corev1.Service{}
	list, err := c.cfg.Kube.CoreV1().Services("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list Services: %w", err)
	}
	for i := range list.Items {
		s := &list.Items[i]
		if v, _ := watch.ConvertService(s); v != nil {
			m.Services[v.Name], services[v.Name] = v, s
		}
	}
	nodes, err := c.cfg.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list Nodes: %w", err)
	}
	for i := range nodes.Items {
		v, _ := watch.ConvertNode(&nodes.Items[i])
		m.Nodes[v.Name] = v
	}
	spaces, err := c.cfg.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, fmt.Errorf("list namespaces: %w", err)
	}
	for i := range spaces.Items {
		v, _ := watch.ConvertNamespace(&spaces.Items[i])
		m.Namespaces[v.Name] = v
	}
	err = errors.Join(c.readPools(ctx, m), c.readRanges(ctx, m), c.readSettings(ctx, m), c.readMany(ctx))
	m.Pods, m.Slices = c.refusals.pods, c.refusals.slices
	return m, services, err
}

func (c *Controller) readPools(ctx context.Context, m *model.Cluster) error {
	list, err := c.cfg.Dynamic.Resource(poolResource).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list IPPools: %w", err)
	}
	for i := range list.Items {
		p := &v3.IPPool{}
		if runtime.DefaultUnstructuredConverter.FromUnstructured(list.Items[i].Object, p) != nil {
			continue // agents say so
		}
		if v, _ := watch.ConvertPool(p); v != nil {
			m.Pools[v.Name] = v
		}
	}
	return nil
}

// readRanges reads the ranges of cluster IPs; older API servers have no such resource.
func (c *Controller) readRanges(ctx context.Context, m *model.Cluster) error {
	list, err := c.cfg.Kube.NetworkingV1().ServiceCIDRs().List(ctx, metav1.ListOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list ServiceCIDRs: %w", err)
	}
	for i := range list.Items {
		v, _ := watch.ConvertServiceCIDR(&list.Items[i])
		m.ServiceCIDRs = append(m.ServiceCIDRs, v.CIDRs...)
	}
	slices.SortFunc(m.ServiceCIDRs, netip.Prefix.Compare)
	return nil
}

// readSettings reads FelixConfiguration default below the environment, as an agent does that has
// none of its own.
func (c *Controller) readSettings(ctx context.Context, m *model.Cluster) error {
	r := config.New("", c.cfg.Environ, nil)
	u, err := c.cfg.Dynamic.Resource(felixResource).Get(ctx, "default", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("get FelixConfiguration default: %w", err)
	default:
		if spec, ok, err := unstructured.NestedMap(u.Object, "spec"); err == nil && ok {
			r.Set("default", spec)
		}
	}
	m.Settings = r.Resolve().Settings
	return nil
}

// readMany reads what there is much of, now and then; the API servers' slices each time.
func (c *Controller) readMany(ctx context.Context) error {
	r := &c.refusals
	if r.rounds%everyRounds == 0 {
		pods, found := &model.PodTable{}, map[model.Name]*model.EndpointSlice{}
		err := pages(func(o metav1.ListOptions) (string, error) {
			list, err := c.cfg.Kube.CoreV1().Pods("").List(ctx, o)
			if err != nil {
				return "", fmt.Errorf("list Pods: %w", err)
			}
			for i := range list.Items {
				v, _ := watch.ConvertPod(&list.Items[i])
				pods.Put(v)
			}
			return list.Continue, nil
		})
		if err != nil {
			return err
		}
		if err := c.readSlices(ctx, found, metav1.NamespaceAll, ""); err != nil {
			return err
		}
		r.pods, r.slices = pods, found
	}
	r.rounds++
	return c.readSlices(ctx, r.slices, metav1.NamespaceDefault, discoveryv1.LabelServiceName+"=kubernetes")
}

func (c *Controller) readSlices(ctx context.Context, into map[model.Name]*model.EndpointSlice, namespace, labels string) error {
	return pages(func(o metav1.ListOptions) (string, error) {
		o.LabelSelector = labels
		list, err := c.cfg.Kube.DiscoveryV1().EndpointSlices(namespace).List(ctx, o)
		if err != nil {
			return "", fmt.Errorf("list EndpointSlices: %w", err)
		}
		for i := range list.Items {
			if v, _ := watch.ConvertEndpointSlice(&list.Items[i]); v != nil {
				into[v.Name] = v
			}
		}
		return list.Continue, nil
	})
}

// pages reads a list page by page.
func pages(read func(metav1.ListOptions) (next string, err error)) error {
	o := metav1.ListOptions{Limit: listPage}
	for {
		next, err := read(o)
		if err != nil || next == "" {
			return err
		}
		o.Continue = next
	}
}
