// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/weir-net/weir/lab/internal/images"
	"github.com/weir-net/weir/lab/internal/plan"
)

// calico deploys Calico from its own manifest.
func (u *starter) calico(ctx context.Context) error {
	src, err := calicoSource(ctx, u.o, u.p)
	if err != nil {
		return err
	}
	name := "calico-vxlan.yaml"
	if u.o.BGP {
		name = "calico.yaml"
	}
	raw, err := os.ReadFile(filepath.Join(src, "manifests", name))
	if err != nil {
		return fmt.Errorf("read Calico's manifest: %w", err)
	}
	manifest, err := calicoManifest(raw)
	if err != nil {
		return err
	}
	// Its definitions are larger than what apply keeps of an object by itself.
	err = u.inControlPlane(ctx, manifest, u.set.Path("kubectl"), "--kubeconfig", KubeconfigPath(u.s.Name), "apply", "--server-side", "-f", "-")
	if err != nil {
		return fmt.Errorf("deploy Calico: %w", err)
	}
	return nil
}

// withCalico adds Calico's images to a seed, with BIRD 1.6 where nodes speak BGP: confd, a part of
// Calico's daemon, writes for that one.
func withCalico(ctx context.Context, o Options, i *images.Builder, seed string) (string, error) {
	if !o.BGP {
		return i.SeedWithCalico(ctx, seed, nil)
	}
	src, err := calicoSource(ctx, o, i.Progress)
	if err != nil {
		return "", err
	}
	of := &images.CalicoBGP{BIRD: filepath.Join(o.Cache, "bird"), Confd: filepath.Join(src, "confd", "etc", "calico", "confd")}
	if _, err := os.Stat(of.BIRD); err != nil {
		return "", fmt.Errorf("BIRD 1.6 is missing on this machine, run WEIR_SETUP_BIRD1=yes hack/setup.sh: %w", err)
	}
	return i.SeedWithCalico(ctx, seed, of)
}

// calicoManifest is Calico's own without what a lab has no program for: its controllers, the plugin
// bandwidth, and what prepares a node for its eBPF data plane or comes from another IPAM.
func calicoManifest(raw []byte) ([]byte, error) {
	var out bytes.Buffer
	found := map[string]bool{}
	for doc := range strings.SplitSeq("\n"+string(raw), "\n---") {
		u := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(doc), &u.Object); err != nil {
			return nil, fmt.Errorf("read Calico's manifest: %w", err)
		}
		if len(u.Object) == 0 || u.GetName() == "calico-kube-controllers" {
			continue
		}
		var err error
		switch u.GetKind() {
		case "ConfigMap":
			err = withoutBandwidth(u)
		case "DaemonSet":
			err = inLab(u)
		}
		if err != nil {
			return nil, fmt.Errorf("change %s %s of Calico's manifest: %w", u.GetKind(), u.GetName(), err)
		}
		found[u.GetKind()] = true
		text, err := yaml.Marshal(u.Object)
		if err != nil {
			return nil, fmt.Errorf("write Calico's manifest: %w", err)
		}
		fmt.Fprintf(&out, "---\n%s", text)
	}
	for _, kind := range []string{"CustomResourceDefinition", "ConfigMap", "DaemonSet", "ClusterRole"} {
		if !found[kind] {
			return nil, fmt.Errorf("Calico's manifest has no %s", kind)
		}
	}
	return out.Bytes(), nil
}

// withoutBandwidth leaves the plugin bandwidth out of the network configuration.
func withoutBandwidth(u *unstructured.Unstructured) error {
	const key, number = "cni_network_config", "__CNI_MTU__"
	text, _, err := unstructured.NestedString(u.Object, "data", key)
	if err != nil {
		return err
	}
	var conf map[string]any
	if err := json.Unmarshal([]byte(strings.Replace(text, number, `"`+number+`"`, 1)), &conf); err != nil {
		return fmt.Errorf("read %s: %w", key, err)
	}
	plugins, _ := conf["plugins"].([]any)
	conf["plugins"] = slices.DeleteFunc(plugins, func(p any) bool {
		m, _ := p.(map[string]any)
		return m["type"] == "bandwidth"
	})
	changed, err := json.Marshal(conf)
	if err != nil {
		return err
	}
	return unstructured.SetNestedField(u.Object, strings.Replace(string(changed), `"`+number+`"`, number, 1), "data", key)
}

// inLab has the DaemonSet run the lab's image, for the lab's pods.
func inLab(u *unstructured.Unstructured) error {
	path := []string{"spec", "template", "spec", "initContainers"}
	first, _, err := unstructured.NestedSlice(u.Object, path...)
	if err != nil {
		return err
	}
	first = slices.DeleteFunc(first, func(c any) bool {
		m, _ := c.(map[string]any)
		return m["name"] != "install-cni"
	})
	if len(first) != 1 {
		return errors.New("it has no init container install-cni")
	}
	if err := unstructured.SetNestedSlice(u.Object, first, path...); err != nil {
		return err
	}
	path[3] = "containers"
	containers, _, err := unstructured.NestedSlice(u.Object, path...)
	if err != nil {
		return err
	}
	node, _ := containers[0].(map[string]any)
	if node["name"] != "calico-node" || node["image"] != images.CalicoNodeImage {
		return fmt.Errorf("its first container is %v of image %v, want calico-node of %s", node["name"], node["image"], images.CalicoNodeImage)
	}
	// The folder of kernel modules is the machine's, which may have none: it would be made there.
	mounts, _ := node["volumeMounts"].([]any)
	node["volumeMounts"] = slices.DeleteFunc(mounts, func(v any) bool {
		m, _ := v.(map[string]any)
		return m["name"] == "lib-modules"
	})
	// It asks runit and birdcl, which the lab's image lacks; readiness asks BIRD itself.
	if probe, ok, _ := unstructured.NestedStringSlice(node, "livenessProbe", "exec", "command"); ok {
		probe = slices.DeleteFunc(probe, func(arg string) bool { return arg == "-bird-live" })
		if err := unstructured.SetNestedStringSlice(node, probe, "livenessProbe", "exec", "command"); err != nil {
			return err
		}
	}
	// Kernels without a device of IP in IP are to do.
	env, _ := node["env"].([]any)
	for _, v := range env {
		if m, _ := v.(map[string]any); m["name"] == "CALICO_IPV4POOL_IPIP" {
			m["value"] = "Never"
		}
	}
	node["env"] = append(env, map[string]any{"name": "CALICO_IPV4POOL_CIDR", "value": plan.PodCIDR.String()})
	return unstructured.SetNestedSlice(u.Object, containers, path...)
}
