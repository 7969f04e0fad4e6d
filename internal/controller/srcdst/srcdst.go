// SPDX-License-Identifier: Apache-2.0

// Package srcdst switches EC2's source/destination check of nodes on or off, as FelixConfiguration
// awsSrcDstCheck says: while it is on, the network drops what a node sends with another address
// than its interface's, as with DSR. The check is that of each node's primary interface. EC2 is
// asked in the region and with the rights of the controller itself; with DoNothing, the default,
// nobody is asked, and no credentials are looked for.
package srcdst

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awsconfig "github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	v3 "github.com/projectcalico/api/pkg/apis/projectcalico/v3"
	"github.com/prometheus/client_golang/prometheus"
	_ "golang.org/x/crypto/x509roots/fallback" // Weir's image has no authorities of its own
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/weir-net/weir/internal/config"
	"github.com/weir-net/weir/internal/controller/srcdst/status"
	"github.com/weir-net/weir/internal/sleep"
)

// EC2 is what is asked of Amazon.
type EC2 interface {
	DescribeNetworkInterfaces(context.Context, *ec2.DescribeNetworkInterfacesInput, ...func(*ec2.Options)) (*ec2.DescribeNetworkInterfacesOutput, error)
	ModifyNetworkInterfaceAttribute(context.Context, *ec2.ModifyNetworkInterfaceAttributeInput, ...func(*ec2.Options)) (*ec2.ModifyNetworkInterfaceAttributeOutput, error)
}

// Connect finds region and credentials as Amazon's SDK does: environment, web identity, the
// instance's role.
func Connect(ctx context.Context) (EC2, error) {
	c, err := awsconfig.LoadDefaultConfig(ctx, awsconfig.WithEC2IMDSRegion())
	if err != nil {
		return nil, fmt.Errorf("looking for region and credentials for EC2: %w", err)
	}
	return ec2.NewFromConfig(c), nil
}

// Config is what a Controller needs.
type Config struct {
	Kube    kubernetes.Interface
	Dynamic dynamic.Interface
	Log     *slog.Logger
	// Environ has the form of os.Environ: FELIX_AWSSRCDSTCHECK goes before FelixConfiguration.
	Environ []string
	// Interval is the time between two looks at setting and Nodes.
	Interval time.Duration
	Connect  func(context.Context) (EC2, error)
}

// again is after how long an interface that was as it has to be is looked at once more: somebody
// else may have changed it.
const again = 10 * time.Minute

// batch is how many instances are asked about at once; EC2 takes 200 values in a filter.
const batch = 200

// Controller looks after the checks. One runs at a time; a second one does no harm.
type Controller struct {
	cfg     Config
	ec2     EC2
	enable  bool                 // what settled is about
	settled map[string]time.Time // by instance, when its check was as it has to be
	said    *status.Status       // nil = nothing yet
	now     func() time.Time

	changed, failures prometheus.Counter
}

// New returns a Controller; nothing is sent before Run.
func New(cfg Config) *Controller {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Namespace: "weir_controller", Name: name, Help: help})
	}
	return &Controller{cfg: cfg, settled: map[string]time.Time{}, now: time.Now,
		changed:  counter("source_dest_checks_changed_total", "Source/destination checks of EC2 interfaces that were switched as awsSrcDstCheck says."),
		failures: counter("source_dest_check_errors_total", "Looks at the source/destination checks of nodes that failed in part.")}
}

// Register offers the controller's metrics.
func (c *Controller) Register(r prometheus.Registerer) { r.MustRegister(c.changed, c.failures) }

// Run looks after the checks until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	for ctx.Err() == nil {
		if err := c.Look(ctx); err != nil && ctx.Err() == nil {
			c.failures.Inc()
			c.cfg.Log.Warn("awsSrcDstCheck is not in force on all nodes; trying again", "err", err)
		}
		_ = sleep.For(ctx, c.cfg.Interval)
	}
}

// Look compares once, and says what is in force.
func (c *Controller) Look(ctx context.Context) error {
	setting, err := c.setting(ctx)
	if err != nil {
		clear(c.settled)
		return err
	}
	var say status.Status
	if setting == config.SrcDstDoNothing {
		clear(c.settled)
	} else {
		say.Setting = setting
		say.Others, err = c.compare(ctx, setting == config.SrcDstEnable)
		say.InForce = len(c.settled)
		var all []string
		say.Failed, all = failures(err)
		say.Error = strings.Join(all, "; ")
	}
	if c.said != nil && reflect.DeepEqual(*c.said, say) {
		return err
	}
	failed := status.Write(ctx, c.cfg.Kube, say)
	if failed == nil {
		c.said = &say
	}
	return errors.Join(err, failed)
}

// compare switches the checks that are other than they have to be, and returns how many Nodes are
// no instances.
func (c *Controller) compare(ctx context.Context, enable bool) (others int, err error) {
	if enable != c.enable {
		c.enable = enable
		clear(c.settled)
	}
	nodes, others, err := c.nodes(ctx)
	maps.DeleteFunc(c.settled, func(id string, at time.Time) bool { return nodes[id] == nil || c.now().Sub(at) > again })
	var due []string
	for _, id := range slices.Sorted(maps.Keys(nodes)) {
		if _, is := c.settled[id]; !is {
			due = append(due, id)
		}
	}
	if len(due) == 0 {
		return others, err
	}
	if c.ec2 == nil {
		var failed error
		if c.ec2, failed = c.cfg.Connect(ctx); failed != nil {
			return others, errors.Join(err, failed)
		}
	}
	errs := []error{err}
	for some := range slices.Chunk(due, batch) {
		errs = append(errs, c.settle(ctx, nodes, some))
	}
	return others, errors.Join(errs...)
}

// nodeError is why a Node's check is not as it has to be.
type nodeError struct {
	node string
	err  error
}

func (e *nodeError) Error() string { return "Node " + e.node + ": " + e.err.Error() }

func (e *nodeError) Unwrap() error { return e.err }

func ofNode(name, format string, args ...any) error {
	return &nodeError{name, fmt.Errorf(format, args...)}
}

// failures separates what is about single Nodes, sorted, from what is about all.
func failures(err error) (of []status.Failure, all []string) {
	var one *nodeError
	if joined, is := err.(interface{ Unwrap() []error }); is {
		for _, e := range joined.Unwrap() {
			more, rest := failures(e)
			of, all = append(of, more...), append(all, rest...)
		}
		slices.SortFunc(of, func(a, b status.Failure) int { return cmp.Compare(a.Node, b.Node) })
		return of, all
	}
	switch {
	case err == nil:
	case errors.As(err, &one):
		of = append(of, status.Failure{Node: one.node, Why: one.err.Error()})
	default:
		all = append(all, err.Error())
	}
	return of, all
}

// setting reads awsSrcDstCheck as agents read settings.
func (c *Controller) setting(ctx context.Context) (string, error) {
	r := config.New("", c.cfg.Environ, nil)
	u, err := c.cfg.Dynamic.Resource(v3.SchemeGroupVersion.WithResource("felixconfigurations")).Get(ctx, "default", metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return "", fmt.Errorf("get FelixConfiguration default: %w", err)
	default:
		if spec, ok, err := unstructured.NestedMap(u.Object, "spec"); err == nil && ok {
			r.Set("default", spec)
		}
	}
	return r.Resolve().SrcDstCheck, nil
}

// instanceRE is the provider ID that Amazon's cloud controller gives a Node: its zone and instance.
var instanceRE = regexp.MustCompile(`^aws:///[a-z0-9-]*/(i-[0-9a-f]{8,17})$`)

// nodes are the Nodes that are instances of EC2, by instance, and how many are none. A kubelet says
// itself which instance it is on: of two that name one, neither is believed.
func (c *Controller) nodes(ctx context.Context) (all map[string]*corev1.Node, others int, err error) {
	out, twice := map[string]*corev1.Node{}, map[string]bool{}
	var errs []error
	for more := ""; ; {
		list, err := c.cfg.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{Limit: 250, Continue: more})
		if err != nil {
			return nil, 0, fmt.Errorf("list Nodes: %w", err)
		}
		for i := range list.Items {
			n := &list.Items[i]
			m := instanceRE.FindStringSubmatch(n.Spec.ProviderID)
			if m == nil {
				others++
				continue
			}
			if other := out[m[1]]; other != nil {
				for _, name := range []string{other.Name, n.Name} {
					errs = append(errs, ofNode(name, "Nodes %s and %s both name the instance %s: its check stays as it is", other.Name, n.Name, m[1]))
				}
				twice[m[1]] = true
			}
			out[m[1]] = n
		}
		if more = list.Continue; more == "" {
			break
		}
	}
	maps.DeleteFunc(out, func(id string, _ *corev1.Node) bool { return twice[id] })
	return out, others, errors.Join(errs...)
}

// settle asks for the primary interfaces of instances, and switches the checks that are other than
// they have to be.
func (c *Controller) settle(ctx context.Context, nodes map[string]*corev1.Node, instances []string) error {
	in := &ec2.DescribeNetworkInterfacesInput{Filters: []types.Filter{
		{Name: aws.String("attachment.instance-id"), Values: instances}, {Name: aws.String("attachment.device-index"), Values: []string{"0"}},
	}}
	var errs []error
	seen := map[string]bool{}
	for {
		out, err := c.ec2.DescribeNetworkInterfaces(ctx, in)
		if err != nil {
			return errors.Join(append(errs, fmt.Errorf("asking EC2 for the interfaces of nodes: %w", err))...)
		}
		for i := range out.NetworkInterfaces {
			e := &out.NetworkInterfaces[i]
			if e.Attachment == nil || aws.ToInt32(e.Attachment.DeviceIndex) != 0 || aws.ToInt32(e.Attachment.NetworkCardIndex) != 0 {
				continue
			}
			id := aws.ToString(e.Attachment.InstanceId)
			if !slices.Contains(instances, id) {
				continue
			}
			seen[id] = true
			if err := c.check(ctx, nodes[id], e); err != nil {
				errs = append(errs, err)
				continue
			}
			c.settled[id] = c.now()
		}
		if in.NextToken = out.NextToken; aws.ToString(in.NextToken) == "" {
			break
		}
	}
	for _, id := range instances {
		if !seen[id] {
			errs = append(errs, ofNode(nodes[id].Name, "EC2 knows no primary interface of the instance %s", id))
		}
	}
	return errors.Join(errs...)
}

// check switches the check of one interface where it is other than it has to be. The interface has
// to have an address of the Node, so that one which names another's instance changes nothing.
func (c *Controller) check(ctx context.Context, n *corev1.Node, e *types.NetworkInterface) error {
	addr := aws.ToString(e.PrivateIpAddress)
	if !slices.ContainsFunc(n.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Type == corev1.NodeInternalIP && a.Address == addr }) {
		return ofNode(n.Name, "it names the instance %s, and has not its address %s: its check stays as it is", aws.ToString(e.Attachment.InstanceId), addr)
	}
	if e.SourceDestCheck != nil && *e.SourceDestCheck == c.enable {
		return nil
	}
	_, err := c.ec2.ModifyNetworkInterfaceAttribute(ctx, &ec2.ModifyNetworkInterfaceAttributeInput{
		NetworkInterfaceId: e.NetworkInterfaceId, SourceDestCheck: &types.AttributeBooleanValue{Value: aws.Bool(c.enable)}})
	if err != nil {
		return ofNode(n.Name, "switching the check of %s: %w", aws.ToString(e.NetworkInterfaceId), err)
	}
	c.changed.Inc()
	c.cfg.Log.Info("switched a source/destination check", "node", n.Name, "interface", aws.ToString(e.NetworkInterfaceId), "enabled", c.enable)
	return nil
}
