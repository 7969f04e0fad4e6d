// SPDX-License-Identifier: Apache-2.0

// Package podexec runs programs in containers by the API server's exec.
package podexec

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
)

// New prepares a command with standard input, output and error. It speaks WebSocket, and SPDY with
// servers and proxies that do not.
func New(kube kubernetes.Interface, config *rest.Config, namespace, pod, container string, command []string) (remotecommand.Executor, error) {
	url := kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdin: true, Stdout: true, Stderr: true}, scheme.ParameterCodec).URL()
	spdy, err := remotecommand.NewSPDYExecutor(config, "POST", url)
	if err != nil {
		return nil, err
	}
	ws, err := remotecommand.NewWebSocketExecutor(config, "GET", url.String())
	if err != nil {
		return nil, err
	}
	return remotecommand.NewFallbackExecutor(ws, spdy, func(err error) bool {
		return httpstream.IsHTTPSProxyError(err) || httpstream.IsUpgradeFailure(err) && Status(err) == nil
	})
}

// Status returns what the API server answered instead of running a command; nil when it is not
// known.
func Status(err error) *apierrors.StatusError {
	var upgrade *httpstream.UpgradeFailureError
	if errors.As(err, &upgrade) {
		err = upgrade.Cause
	}
	var s *apierrors.StatusError
	if errors.As(err, &s) {
		return s
	}
	return nil
}
