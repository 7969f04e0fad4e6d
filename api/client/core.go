// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
)

// Lister reads the objects of one kind, of all namespaces. client-go's typed clients are such.
type Lister[L runtime.Object] interface {
	List(ctx context.Context, o metav1.ListOptions) (L, error)
	Watch(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error)
}

// Core are the kinds of Kubernetes itself that an agent reads. client-go's clientset would do too,
// but it knows every kind that there is, and half of the agent's memory would be that knowledge.
type Core struct {
	Namespaces Lister[*corev1.NamespaceList]
	Pods       Lister[*corev1.PodList]
	Nodes      Lister[*corev1.NodeList]
	Services   Lister[*corev1.ServiceList]
	Slices     Lister[*discoveryv1.EndpointSliceList]
	Accounts   Lister[*corev1.ServiceAccountList]
	Policies   Lister[*networkingv1.NetworkPolicyList]
	// Pod reads one pod.
	Pod func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	// Namespace reads one namespace, and Slice one EndpointSlice.
	Namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
	Slice     func(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error)
}

// newCore connects with a tuned configuration.
func newCore(cfg *rest.Config) (Core, error) {
	scheme := runtime.NewScheme()
	err := errors.Join(corev1.AddToScheme(scheme), discoveryv1.AddToScheme(scheme), networkingv1.AddToScheme(scheme))
	if err != nil {
		return Core{}, fmt.Errorf("registering the kinds of Kubernetes: %w", err)
	}
	codecs, params := serializer.NewCodecFactory(scheme), runtime.NewParameterCodec(scheme)
	httpClient, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return Core{}, err
	}
	group := func(path string, gv schema.GroupVersion) rest.Interface {
		c := rest.CopyConfig(cfg)
		c.ContentType = runtime.ContentTypeProtobuf
		c.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
		c.APIPath, c.GroupVersion, c.NegotiatedSerializer = path, &gv, codecs.WithoutConversion()
		r, e := rest.RESTClientForConfigAndClient(c, httpClient)
		err = errors.Join(err, e)
		return r
	}
	core, discovery, networking := group("/api", corev1.SchemeGroupVersion), group("/apis", discoveryv1.SchemeGroupVersion), group("/apis", networkingv1.SchemeGroupVersion)
	if err != nil {
		return Core{}, err
	}
	return Core{
		Namespaces: reader[corev1.NamespaceList, *corev1.NamespaceList]{core, "namespaces", params},
		Pods:       reader[corev1.PodList, *corev1.PodList]{core, "pods", params},
		Nodes:      reader[corev1.NodeList, *corev1.NodeList]{core, "nodes", params},
		Services:   reader[corev1.ServiceList, *corev1.ServiceList]{core, "services", params},
		Slices:     reader[discoveryv1.EndpointSliceList, *discoveryv1.EndpointSliceList]{discovery, "endpointslices", params},
		Accounts:   reader[corev1.ServiceAccountList, *corev1.ServiceAccountList]{core, "serviceaccounts", params},
		Policies:   reader[networkingv1.NetworkPolicyList, *networkingv1.NetworkPolicyList]{networking, "networkpolicies", params},
		Pod: func(ctx context.Context, namespace, name string) (*corev1.Pod, error) {
			pod := &corev1.Pod{}
			return pod, core.Get().Namespace(namespace).Resource("pods").Name(name).Do(ctx).Into(pod)
		},
		Namespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
			ns := &corev1.Namespace{}
			return ns, core.Get().Resource("namespaces").Name(name).Do(ctx).Into(ns)
		},
		Slice: func(ctx context.Context, namespace, name string) (*discoveryv1.EndpointSlice, error) {
			slice := &discoveryv1.EndpointSlice{}
			return slice, discovery.Get().Namespace(namespace).Resource("endpointslices").Name(name).Do(ctx).Into(slice)
		},
	}, nil
}

// reader is a Lister over HTTP.
type reader[T any, L interface {
	*T
	runtime.Object
}] struct {
	api      rest.Interface
	resource string
	params   runtime.ParameterCodec
}

func (r reader[T, L]) request(o *metav1.ListOptions) *rest.Request {
	q := r.api.Get().Resource(r.resource).VersionedParams(o, r.params)
	if o.TimeoutSeconds != nil {
		q = q.Timeout(time.Duration(*o.TimeoutSeconds) * time.Second)
	}
	return q
}

func (r reader[T, L]) List(ctx context.Context, o metav1.ListOptions) (L, error) {
	list := L(new(T))
	return list, r.request(&o).Do(ctx).Into(list)
}

func (r reader[T, L]) Watch(ctx context.Context, o metav1.ListOptions) (apiwatch.Interface, error) {
	o.Watch = true
	return r.request(&o).Watch(ctx)
}
