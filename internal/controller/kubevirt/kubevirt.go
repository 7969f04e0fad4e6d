// SPDX-License-Identifier: Apache-2.0

// Package kubevirt lets virtual machines of KubeVirt keep their addresses while IPAMConfiguration
// kubeVirtVMAddressPersistence is Enabled. It makes each address of a machine a block of its own,
// whose node is the one that the machine runs on, and says in it which pods may have it: that in
// which the machine runs, and the target of a live migration, whose node may take the address over.
// Before that the open flows of the address are brought there (flows.go). A block goes with its
// VirtualMachine.
package kubevirt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"time"

	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/dynamic/dynamicinformer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"github.com/weir-net/weir/api/client"
	weirv1 "github.com/weir-net/weir/api/weir/v1"
	"github.com/weir-net/weir/internal/model"
	"github.com/weir-net/weir/internal/sleep"
	"github.com/weir-net/weir/internal/watch/parse"
)

// The kinds of KubeVirt that are looked at.
var (
	version    = schema.GroupVersion{Group: "kubevirt.io", Version: "v1"}
	instances  = version.WithResource("virtualmachineinstances")
	migrations = version.WithResource("virtualmachineinstancemigrations")
	machines   = version.WithResource("virtualmachines")
)

// Config is what a Controller needs.
type Config struct {
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Log     *slog.Logger
	// Agents are those of the nodes; nil = flows are brought nowhere.
	Agents Agents
	// Interval is the time after which everything is looked at again.
	Interval time.Duration
}

// Controller looks after the blocks of machines. One runs at a time; a second one does no harm.
type Controller struct {
	cfg    Config
	blocks client.Resource[weirv1.IPAMBlock]
	flows  *flows

	// Of follow.
	queue  workqueue.TypedRateLimitingInterface[model.Name] // of instances
	stores map[schema.GroupVersionResource]cache.Store
}

// New returns a Controller; nothing is sent before Run.
func New(cfg Config) *Controller {
	return &Controller{cfg: cfg, blocks: client.Blocks(cfg.Dynamic), flows: newFlows(cfg.Agents, cfg.Log)}
}

// Run works until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	for ctx.Err() == nil {
		needed, err := c.needed(ctx)
		switch {
		case err != nil && ctx.Err() == nil:
			c.cfg.Log.Warn("cannot look for virtual machines; trying again", "err", err)
		case needed:
			c.follow(ctx)
		}
		_ = sleep.For(ctx, c.cfg.Interval)
	}
}

// enabled reports whether machines get blocks.
func (c *Controller) enabled(ctx context.Context) (bool, error) {
	u, err := c.cfg.Dynamic.Resource(v3.SchemeGroupVersion.WithResource("ipamconfigurations")).Get(ctx, "default", metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("get IPAMConfiguration default: %w", err)
	}
	o, err := decode[parse.IPAMConfiguration](u)
	return err == nil && o.Spec.KubeVirtVMAddressPersistence == parse.VMAddressEnabled, err
}

// needed reports whether there are machines to follow: where machines had addresses before it was
// switched off, until these are gone.
func (c *Controller) needed(ctx context.Context) (bool, error) {
	on, err := c.enabled(ctx)
	if err != nil {
		return false, err
	}
	if !on {
		all, err := c.blocks.List(ctx)
		if err != nil || !slices.ContainsFunc(all, func(b weirv1.IPAMBlock) bool { return b.Spec.VirtualMachine != nil }) {
			return false, err
		}
	}
	_, err = c.cfg.Kube.Discovery().ServerResourcesForGroupVersion(version.String())
	if apierrors.IsNotFound(err) {
		return false, nil
	}
	return err == nil, err
}

// follow works while it is needed.
func (c *Controller) follow(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer c.flows.waiting.Wait()
	defer cancel()
	clear(c.flows.at) // what happened meanwhile is not known
	clear(c.flows.expects)
	c.queue = workqueue.NewTypedRateLimitingQueue(workqueue.NewTypedItemExponentialFailureRateLimiter[model.Name](50*time.Millisecond, 30*time.Second))
	defer c.queue.ShutDown()
	factory := dynamicinformer.NewDynamicSharedInformerFactory(c.cfg.Dynamic, c.cfg.Interval) // looks again for pods' addresses
	c.stores = map[schema.GroupVersionResource]cache.Store{}
	var synced []cache.InformerSynced
	for of, name := range map[schema.GroupVersionResource]func(*unstructured.Unstructured) model.Name{
		instances: nameOf, machines: nameOf, migrations: func(u *unstructured.Unstructured) model.Name {
			vmi, _, _ := unstructured.NestedString(u.Object, "spec", "vmiName")
			return model.Name{Namespace: u.GetNamespace(), Name: vmi}
		},
		weirv1.IPAMBlocks: machineOf,
	} {
		informer := factory.ForResource(of).Informer()
		changed := func(o any) {
			if gone, is := o.(cache.DeletedFinalStateUnknown); is {
				o = gone.Obj
			}
			if u, is := o.(*unstructured.Unstructured); is {
				if n := name(u); n.Name != "" {
					c.queue.Add(n)
				}
			}
		}
		r, err1 := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: changed, UpdateFunc: func(_, o any) { changed(o) }, DeleteFunc: changed})
		if err := errors.Join(informer.SetTransform(strip), err1); err != nil {
			c.cfg.Log.Error("cannot follow virtual machines", "err", err)
			return
		}
		c.stores[of] = informer.GetStore()
		synced = append(synced, r.HasSynced)
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return
	}
	go func() {
		for sleep.For(ctx, c.cfg.Interval) == nil {
			if needed, err := c.needed(ctx); err == nil && !needed {
				break
			}
		}
		c.queue.ShutDown()
	}()
	for {
		name, ended := c.queue.Get()
		if ended {
			return
		}
		err := c.reconcile(ctx, name)
		c.queue.Done(name)
		if err == nil {
			c.queue.Forget(name)
			continue
		}
		if !apierrors.IsConflict(err) && ctx.Err() == nil {
			c.cfg.Log.Warn("the addresses of a virtual machine are not as they should be; trying again", "machine", name.String(), "err", err)
		}
		c.queue.AddRateLimited(name)
	}
}

// strip leaves of an object what is looked at: instances have what their users are told at their
// first start, passwords among it.
func strip(o any) (any, error) {
	u, is := o.(*unstructured.Unstructured)
	if !is {
		return o, nil
	}
	unstructured.RemoveNestedField(u.Object, "metadata", "managedFields")
	unstructured.RemoveNestedField(u.Object, "metadata", "annotations")
	switch u.GetKind() {
	case "VirtualMachine":
		delete(u.Object, "spec")
		delete(u.Object, "status")
	case "VirtualMachineInstance":
		networks, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "networks")
		interfaces, _, _ := unstructured.NestedFieldNoCopy(u.Object, "spec", "domain", "devices", "interfaces")
		u.Object["spec"] = map[string]any{"networks": networks, "domain": map[string]any{"devices": map[string]any{"interfaces": interfaces}}}
	}
	return u, nil
}

func nameOf(u *unstructured.Unstructured) model.Name {
	return model.Name{Namespace: u.GetNamespace(), Name: u.GetName()}
}

// machineOf names the machine whose address a block is; the zero name = it is a node's.
func machineOf(block *unstructured.Unstructured) model.Name {
	text, _, _ := unstructured.NestedString(block.Object, "spec", "virtualMachine", "name")
	namespace, name, _ := strings.Cut(text, "/")
	return model.Name{Namespace: namespace, Name: name}
}

func (c *Controller) get(of schema.GroupVersionResource, n model.Name) *unstructured.Unstructured {
	o, there, err := c.stores[of].GetByKey(n.String())
	if err != nil || !there {
		return nil
	}
	return o.(*unstructured.Unstructured)
}

// reconcile makes the blocks of a machine what they should be.
func (c *Controller) reconcile(ctx context.Context, name model.Name) error {
	var mine []*weirv1.IPAMBlock
	for _, o := range c.stores[weirv1.IPAMBlocks].List() {
		u := o.(*unstructured.Unstructured)
		if machineOf(u) != name {
			continue
		}
		if b, err := decode[weirv1.IPAMBlock](u); err == nil {
			mine = append(mine, b)
		}
	}
	u := c.get(instances, name)
	if u == nil {
		return c.withoutInstance(ctx, name, mine)
	}
	v, err := decode[instance](u)
	if err != nil {
		return fmt.Errorf("read VirtualMachineInstance %s: %w", name, err)
	}
	pods, err := c.cfg.Kube.CoreV1().Pods(name.Namespace).List(ctx, metav1.ListOptions{LabelSelector: model.LabelKubeVirt + "=" + model.KubeVirtLauncher + "," + model.LabelKubeVirtInstance + "=" + string(v.UID)})
	if err != nil {
		return fmt.Errorf("list the pods of VirtualMachineInstance %s: %w", name, err)
	}
	home, target := v.place(v.launchers(pods.Items), c.moving(name))
	var errs []error
	mine, err = c.forgetOthers(ctx, mine, v.owner(), home)
	if errs = append(errs, err); home == nil {
		return errors.Join(errs...)
	}
	for _, b := range mine {
		was := b.Spec.Node
		differs := settle(&b.Spec, name.String(), v.owner(), v.mac(), home, target)
		c.followFlows(ctx, v, addrOf(b), was, b.Spec.Node, home, target)
		if differs {
			_, err := c.blocks.Update(ctx, b)
			errs = append(errs, err)
			c.cfg.Log.Info("the address of a virtual machine", "machine", name.String(), "address", b.Spec.CIDR, "node", b.Spec.Node, "target", target != nil)
		}
	}
	return errors.Join(append(errs, c.claim(ctx, name, v, home, mine))...)
}

// followFlows has the flows of an address be where packets are about to go: at node, after was.
func (c *Controller) followFlows(ctx context.Context, v *instance, a netip.Addr, was, node string, home, target *launcher) {
	switch {
	case target == nil && v.Status.Migration == nil: // one that was started elsewhere has no connections
		c.flows.forget(a)
		c.flows.bring(ctx, a, node, node)
	case target == nil:
		c.flows.expect(ctx, a, "", "")
		c.flows.bring(ctx, a, was, node)
	case node == target.node: // it has taken the address, whether or not the flows were waited for
		c.flows.bring(ctx, a, home.node, node)
	case !c.flows.has(a, target.node):
		c.flows.expect(ctx, a, home.node, target.node)
	}
}

// moving returns the migrations of an instance that go on.
func (c *Controller) moving(name model.Name) map[string]bool {
	out := map[string]bool{}
	for _, o := range c.stores[migrations].List() {
		u := o.(*unstructured.Unstructured)
		if u.GetNamespace() != name.Namespace {
			continue
		}
		if m, err := decode[migration](u); err == nil && m.Spec.VMIName == name.Name && m.Status.Phase != "Succeeded" && m.Status.Phase != "Failed" {
			out[string(m.UID)] = true
		}
	}
	return out
}

// withoutInstance gives the addresses back of a machine that is gone; one that is only off keeps
// them.
func (c *Controller) withoutInstance(ctx context.Context, name model.Name, mine []*weirv1.IPAMBlock) error {
	vm := c.get(machines, name)
	var errs []error
	for _, b := range mine {
		if vm == nil || string(vm.GetUID()) != b.Spec.VirtualMachine.UID {
			errs = append(errs, c.release(ctx, b))
		}
	}
	return errors.Join(errs...)
}

// forgetOthers gives back what a machine of this name had before it was made anew, and addresses in
// whose place its pod has another one. It returns the rest.
func (c *Controller) forgetOthers(ctx context.Context, mine []*weirv1.IPAMBlock, owner string, home *launcher) (left []*weirv1.IPAMBlock, err error) {
	var errs []error
	for _, b := range mine {
		a := addrOf(b)
		other := home != nil && slices.ContainsFunc(home.addrs, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) && !slices.Contains(home.addrs, a)
		if b.Spec.VirtualMachine.UID == owner && !other {
			left = append(left, b)
			continue
		}
		errs = append(errs, c.release(ctx, b))
	}
	return left, errors.Join(errs...)
}

func (c *Controller) release(ctx context.Context, b *weirv1.IPAMBlock) error {
	err := c.blocks.Delete(ctx, b.Name, b.ResourceVersion)
	c.flows.forget(addrOf(b))
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err == nil {
		c.cfg.Log.Info("gave the address of a virtual machine back", "machine", b.Spec.VirtualMachine.Name, "address", b.Spec.CIDR)
	}
	return err
}

func addrOf(b *weirv1.IPAMBlock) netip.Addr {
	p, err := netip.ParsePrefix(b.Spec.CIDR)
	if err != nil {
		return netip.Addr{}
	}
	return p.Addr()
}

// claim makes blocks of addresses that a machine got with its first pod. A node writes the status
// of its pods, so only what lies in its own blocks counts.
func (c *Controller) claim(ctx context.Context, name model.Name, v *instance, home *launcher, mine []*weirv1.IPAMBlock) error {
	var errs []error
	for _, a := range home.addrs {
		if slices.ContainsFunc(mine, func(b *weirv1.IPAMBlock) bool { return addrOf(b).Is4() == a.Is4() }) {
			continue
		}
		in := c.blockOf(home.node, a)
		if in == nil || c.reserved(ctx, a) {
			continue
		}
		if on, err := c.enabled(ctx); err != nil || !on {
			return errors.Join(append(errs, err)...)
		}
		cidr := netip.PrefixFrom(a, a.BitLen())
		_, err := c.blocks.Create(ctx, &weirv1.IPAMBlock{ObjectMeta: metav1.ObjectMeta{Name: weirv1.BlockName(cidr)}, Spec: weirv1.IPAMBlockSpec{
			CIDR: cidr.String(), Node: home.node, Pool: in.Spec.Pool,
			VirtualMachine: &weirv1.BlockVirtualMachine{Name: name.String(), UID: v.owner(), Pod: home.uid, MAC: v.mac()}}})
		if err == nil {
			c.cfg.Log.Info("a virtual machine keeps its address", "machine", name.String(), "address", a.String())
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// blockOf is the block of a node that has an address; nil = none.
func (c *Controller) blockOf(node string, a netip.Addr) *weirv1.IPAMBlock {
	for _, o := range c.stores[weirv1.IPAMBlocks].List() {
		u := o.(*unstructured.Unstructured)
		text, _, _ := unstructured.NestedString(u.Object, "spec", "cidr")
		p, err := netip.ParsePrefix(text)
		if err != nil || p.IsSingleIP() || !p.Contains(a) {
			continue
		}
		if b, err := decode[weirv1.IPAMBlock](u); err == nil && b.Spec.VirtualMachine == nil && b.Spec.Node == node {
			return b
		}
	}
	return nil
}

// reserved reports whether an IPReservation covers an address, which then goes by that; in doubt it
// does.
func (c *Controller) reserved(ctx context.Context, a netip.Addr) bool {
	list, err := c.cfg.Dynamic.Resource(v3.SchemeGroupVersion.WithResource("ipreservations")).List(ctx, metav1.ListOptions{})
	if err != nil {
		return true
	}
	for i := range list.Items {
		cidrs, _, _ := unstructured.NestedStringSlice(list.Items[i].Object, "spec", "reservedCIDRs")
		for _, text := range cidrs {
			if p, err := netip.ParsePrefix(text); err == nil && p.Contains(a) {
				return true
			}
		}
	}
	return false
}
