// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	authv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/weir-net/weir/internal/apitest"
	"github.com/weir-net/weir/internal/hostile"
)

const (
	agentUser      = "system:serviceaccount:kube-system:weir-node"
	controllerUser = "system:serviceaccount:kube-system:weir-controller"
	v3API          = "projectcalico.org/v3"
	weirAPI        = "weir.dev/v1"
)

// cluster is an API server with all that is installed but the programs.
type cluster struct {
	*apitest.Server
}

// TestHostileAdmission writes at a real API server what a tenant, a node, the controller and an
// operator must not write.
func TestHostileAdmission(t *testing.T) {
	if !apitest.Isolated(t) {
		return
	}
	c := cluster{apitest.Start(t)}
	c.install(t)
	for _, attack := range []struct {
		name, actor string
		try         func(*testing.T, cluster)
	}{
		{"a tenant writes a policy into a tier of administrators", hostile.Tenant, tenantWrites},
		{"a tenant moves a policy into a tier of administrators", hostile.Tenant, tenantMovesIn},
		{"a tenant moves a policy out of a tier of administrators", hostile.Tenant, tenantMovesOut},
		{"a tenant deletes a policy of a tier of administrators", hostile.Tenant, tenantDeletes},
		{"a tenant stages a policy in a tier of administrators", hostile.Tenant, tenantStages},
		{"a writer of one named policy writes others of its tier", hostile.Tenant, tenantNamed},
		{"a built-in tier is deleted", hostile.Operator, builtInDeleted},
		{"a built-in tier gets another order or default action", hostile.Operator, builtInChanged},
		{"a token of a node that names no node writes for every node", hostile.Node, tokenWithoutNode},
		{"a node writes or deletes objects of another node", hostile.Node, otherNodesObjects},
		{"a node writes the CalicoNodeStatus of another node, or what is asked for in its own", hostile.Node, otherNodesRouting},
		{"a node keeps its objects from being collected when it is gone", hostile.Node, nodeKeepsObjects},
		{"a node writes events in the name of others", hostile.Node, nodeEvents},
		{"a node or a user changes what clients are shown of addresses", hostile.Node, mirrors},
		{"the token of a node writes Services and policies and nodes", hostile.Node, nodeRights},
		{"the token of the controller creates pods or workloads", hostile.Controller, controllerWorkloads},
		{"the token of the controller reads secrets or makes tokens", hostile.Controller, controllerSecrets},
		{"the token of the controller changes nodes", hostile.Controller, controllerNodes},
		{"the token of the controller writes policies or turns a tier around", hostile.Controller, controllerPolicies},
		{"the token of the controller changes admission or rights", hostile.Controller, controllerRights},
		{"the token of the controller takes the addresses of a live node away", hostile.Controller, controllerBlocks},
		{"the token of the controller changes what clients are shown of the addresses of nodes", hostile.Controller, controllerMirrors},
		{"the token of the controller takes the lease of another component", hostile.Controller, controllerLeases},
		{"the token of the controller opens a node by its host endpoint", hostile.Controller, controllerHostEndpoints},
		{"the token of the controller makes a pool or settings of its own mind", hostile.Controller, controllerPools},
		{"the token of the controller has the API server hand other requests on to it", hostile.Controller, controllerAPIServices},
		{"the token of the controller changes a pool", hostile.Controller, controllerChangesPool},
		{"the token of the controller changes labels, annotations, owners or finalizers of Services", hostile.Controller, controllerServices},
		{"the token of the controller gives an automatic host endpoint a name of its choice", hostile.Controller, controllerHostEndpointNames},
		{"the token of the controller makes a first pool beside pools of other names", hostile.Controller, controllerFirstPools},
		{"the token of the controller scales another workload, or the fan-out without bounds", hostile.Controller, controllerScales},
		{"the token of the controller leads the clients of a Service elsewhere by an EndpointSlice", hostile.Controller, controllerSlices},
		{"the token of the fan-out writes, or reads secrets of others", hostile.Controller, fanOutRights},
		{"the token of a node that the fan-out feeds reads the cluster", hostile.Node, fedNodeReads},
		{"a pool covers loopback, link-local, multicast or all addresses", hostile.Operator, poolOfNobody},
		{"a pool that covers a node is stored", hostile.Operator, poolOfNode},
		{"a pool gets smaller blocks than nodes have, which then do not count", hostile.Operator, smallerBlocks},
		{"a node has a pod of its own, made long ago, ask for a reserved address by annotation", hostile.Node, kubeletAsksForAddress},
		{"a node makes a block under the name of another one", hostile.Node, blockNamedAsOther},
		{"a node makes a block that is larger than those of the pool", hostile.Node, blockLargerThanPools},
		{"a node makes a block that is no network, or one of thousands of addresses", hostile.Node, blockNoNetwork},
		{"a node takes the address of a virtual machine that is not moved to it, or gives it away", hostile.Node, machineOfOther},
		{"the token of the controller takes a pod's address for a virtual machine where machines have none", hostile.Controller, controllerMachines},
		{"a tenant makes a pod that says that a virtual machine owns it, which would have the machine's address", hostile.Tenant, podOfMachine},
		{"a node takes blocks of another one with Calico while nodes change over", hostile.Node, migratingNode},
	} {
		t.Run(attack.name, func(t *testing.T) {
			hostile.Record(t, attack.name, attack.actor, hostile.ControlPlane, hostile.Both)
			attack.try(t, c)
		})
	}
}

// install makes what is installed, without the programs, which would not run here.
func (c cluster) install(t *testing.T) {
	t.Helper()
	objects, err := Objects(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range objects {
		switch u.GetKind() {
		case "DaemonSet", "Deployment", "PodDisruptionBudget":
			continue
		}
		c.Create(u)
	}
	for _, n := range []string{"n1", "n2"} {
		c.Create(apitest.Object("v1", "Node", n, nil))
	}
	c.Create(apitest.Object("v1", "Namespace", "shop", nil))
	c.pool(t) // pools decide whether blocks count
	// Policies of admission count some moments after they were written, each in its time.
	for by, u := range map[string]*unstructured.Unstructured{"weir-controller-objects": object("coordination.k8s.io/v1", "Lease", Namespace, "probe", nil),
		wantsPool: poolOf("probe", "0.0.0.0/0", 0), wantsBlock: blockOf("n1", "10.0.0.0/8", "probe"),
		wantsRelease: mirroredBlock("n1", "probe", "10.244.83.0/30", []any{nil, nil, nil, nil})} {
		apitest.Eventually(t, time.Minute, "the policy of admission "+by, func() error {
			as := c.Clients.Dynamic
			if u.GetKind() == "Lease" {
				as = c.as(controllerUser, "")
			}
			err := c.try(as, "create", u)
			if err == nil {
				_ = c.try(c.Clients.Dynamic, "delete", u)
			}
			if err == nil || !strings.Contains(err.Error(), by) {
				return fmt.Errorf("not yet: %v", err)
			}
			return nil
		})
	}
	for _, o := range []*unstructured.Unstructured{
		object(v3API, "Tier", "", "security", map[string]any{"order": int64(100)}),
		object(v3API, "NetworkPolicy", "shop", "guard", map[string]any{"tier": "security", "selector": "all()"}),
		object(v3API, "NetworkPolicy", "shop", "own", map[string]any{"selector": "app == 'own'"}),
	} {
		c.Create(o)
	}
	c.grant(t, "dev", "shop", rbacv1.PolicyRule{APIGroups: []string{"projectcalico.org"}, Resources: []string{"networkpolicies", "stagednetworkpolicies"}, Verbs: []string{"*"}})
	c.grantRole(t, "dev", "shop", "weir-default-tier")
}

// grant gives a user rights: in a namespace, or everywhere where that is empty.
func (c cluster) grant(t *testing.T, user, namespace string, rules ...rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{GenerateName: "r-"}, Rules: rules}
	role, err := c.Clients.Kube.RbacV1().ClusterRoles().Create(t.Context(), role, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.grantRole(t, user, namespace, role.Name)
}

func (c cluster) grantRole(t *testing.T, user, namespace, role string) {
	t.Helper()
	ref := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role}
	who := []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}}
	name := metav1.ObjectMeta{GenerateName: "b-"}
	var err error
	if namespace == "" {
		_, err = c.Clients.Kube.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{ObjectMeta: name, RoleRef: ref, Subjects: who}, metav1.CreateOptions{})
	} else {
		_, err = c.Clients.Kube.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: name, RoleRef: ref, Subjects: who}, metav1.CreateOptions{})
	}
	if err != nil {
		t.Fatal(err)
	}
}

func object(apiVersion, kind, namespace, name string, spec map[string]any) *unstructured.Unstructured {
	u := apitest.Object(apiVersion, kind, name, spec)
	u.SetNamespace(namespace)
	return u
}

// try does to an object what the verb says: create, update, status (an update of this), delete,
// deletecollection; or patch, with the object as merge patch.
func (c cluster) try(as dynamic.Interface, verb string, u *unstructured.Unstructured) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	gvr, _ := meta.UnsafeGuessKindToResource(u.GroupVersionKind())
	var to dynamic.ResourceInterface = as.Resource(gvr)
	var all dynamic.ResourceInterface = c.Clients.Dynamic.Resource(gvr)
	if u.GetNamespace() != "" {
		to, all = as.Resource(gvr).Namespace(u.GetNamespace()), c.Clients.Dynamic.Resource(gvr).Namespace(u.GetNamespace())
	}
	var err error
	switch verb {
	case "create":
		_, err = to.Create(ctx, u.DeepCopy(), metav1.CreateOptions{})
	case "update":
		now, getErr := all.Get(ctx, u.GetName(), metav1.GetOptions{})
		if getErr != nil {
			return getErr
		}
		u = u.DeepCopy()
		u.SetResourceVersion(now.GetResourceVersion())
		_, err = to.Update(ctx, u, metav1.UpdateOptions{})
	case "status":
		now, getErr := all.Get(ctx, u.GetName(), metav1.GetOptions{})
		if getErr != nil {
			return getErr
		}
		u = u.DeepCopy()
		u.SetResourceVersion(now.GetResourceVersion())
		_, err = to.UpdateStatus(ctx, u, metav1.UpdateOptions{})
	case "patch":
		raw, jsonErr := u.MarshalJSON()
		if jsonErr != nil {
			return jsonErr
		}
		_, err = to.Patch(ctx, u.GetName(), types.MergePatchType, raw, metav1.PatchOptions{})
	case "delete":
		err = to.Delete(ctx, u.GetName(), metav1.DeleteOptions{})
	case "deletecollection":
		err = to.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	}
	return err
}

// as is a user's way to the API; node is what the user's token names.
func (c cluster) as(user, node string) dynamic.Interface { return c.As(user, node).Dynamic }

// refused expects that the API server forbids a request, and says why in these words.
func (c cluster) refused(t *testing.T, as dynamic.Interface, verb string, u *unstructured.Unstructured, words string) {
	t.Helper()
	err := c.try(as, verb, u)
	if err == nil {
		t.Errorf("%s of %s %s was taken", verb, u.GetKind(), u.GetName())
	} else if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), words) {
		t.Errorf("%s of %s %s: %v; want %q in it", verb, u.GetKind(), u.GetName(), err, words)
	}
}

// refusedSoon is refused for what is compared with objects that were just made: the API server
// reads these a moment later.
func (c cluster) refusedSoon(t *testing.T, as dynamic.Interface, u *unstructured.Unstructured, words string) {
	t.Helper()
	apitest.Eventually(t, 10*time.Second, "refusal of "+u.GetKind()+" "+u.GetName(), func() error {
		err := c.try(as, "create", u)
		if err == nil {
			return errors.Join(errors.New("it was taken"), c.try(c.Clients.Dynamic, "delete", u))
		}
		if !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), words) {
			return fmt.Errorf("%w; want %q in it", err, words)
		}
		return nil
	})
}

func (c cluster) taken(t *testing.T, as dynamic.Interface, verb string, u *unstructured.Unstructured) {
	t.Helper()
	// What a role says counts a moment after it was written.
	apitest.Eventually(t, 10*time.Second, verb+" of "+u.GetKind()+" "+u.GetName(), func() error { return c.try(as, verb, u) })
}

// may reports whether a user has a right, without node's token.
func (c cluster) may(t *testing.T, user string, gvr schema.GroupVersionResource, subresource, namespace, verb string) bool {
	t.Helper()
	review := &authv1.SubjectAccessReview{Spec: authv1.SubjectAccessReviewSpec{User: user, Groups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
		ResourceAttributes: &authv1.ResourceAttributes{Group: gvr.Group, Version: gvr.Version, Resource: gvr.Resource, Subresource: subresource, Namespace: namespace, Verb: verb}}}
	got, err := c.Clients.Kube.AuthorizationV1().SubjectAccessReviews().Create(t.Context(), review, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return got.Status.Allowed
}

// mayNot expects that a user has none of these rights: "verb,verb group/resource/subresource" each,
// in kube-system and everywhere.
func (c cluster) mayNot(t *testing.T, user string, rights ...string) {
	t.Helper()
	for _, right := range rights {
		verbs, what, _ := strings.Cut(right, " ")
		parts := append(strings.Split(what, "/"), "")
		for verb := range strings.SplitSeq(verbs, ",") {
			for _, namespace := range []string{"", Namespace, "shop"} {
				if c.may(t, user, schema.GroupVersionResource{Group: parts[0], Version: "*", Resource: parts[1]}, parts[2], namespace, verb) {
					t.Errorf("%s may %s %s in namespace %q", user, verb, what, namespace)
				}
			}
		}
	}
}
