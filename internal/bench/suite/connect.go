// SPDX-License-Identifier: Apache-2.0

package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	"k8s.io/utils/ptr"

	"github.com/weir-net/weir/internal/podexec"
	"github.com/weir-net/weir/internal/terminal"
)

// Connect returns the cluster of an API server.
func Connect(cfg *rest.Config) (*Cluster, error) {
	kube, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare the client of %s: %w", cfg.Host, err)
	}
	dyn, err := dynamic.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("prepare the client of %s: %w", cfg.Host, err)
	}
	return &Cluster{Kube: kube, Dynamic: dyn,
		Run: func(ctx context.Context, namespace, pod string, command []string) ([]byte, error) {
			exec, err := podexec.New(kube, cfg, namespace, pod, "bench", command)
			if err != nil {
				return nil, err
			}
			// The standard input stays open and silent: its end signals the command that nobody
			// listens any more.
			silence, end := io.Pipe()
			defer end.Close()
			var out, said capped
			err = exec.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: silence, Stdout: &out, Stderr: &said})
			if text := strings.TrimSpace(said.kept.String()); err != nil && text != "" {
				err = errors.New(terminal.OneLine(strings.TrimPrefix(text, "weir-bench: ")))
			}
			return out.kept.Bytes(), err
		},
		Logs: func(ctx context.Context, namespace, pod string) ([]byte, error) {
			return kube.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{LimitBytes: ptr.To[int64](64 << 10)}).DoRaw(ctx)
		}}, nil
}

// capped keeps what a pod prints, up to a limit: a node may not be what it seems.
type capped struct{ kept bytes.Buffer }

const maxPrinted = 8 << 20

// Write implements io.Writer.
func (c *capped) Write(p []byte) (int, error) {
	if c.kept.Len()+len(p) > maxPrinted {
		return 0, fmt.Errorf("a pod prints more than %d bytes", maxPrinted)
	}
	return c.kept.Write(p)
}
