// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
)

// CNIResult are the times of calls of the plugin in ms, from before its process is started until it
// has ended.
type CNIResult struct {
	Add []float64 `json:"add_ms"`
	Del []float64 `json:"del_ms"`
	// Control is what the machine itself takes, before each ADD: to make a network namespace, and
	// to run the plugin for VERSION.
	Control []float64 `json:"control_ms"`
}

// cniCommand calls the CNI plugin for pods PREFIX-0 … that exist in the API and have no network
// yet, each with a network namespace of its own, one after the other: ADD for all, then DEL for
// all.
func cniCommand() *cobra.Command {
	var plugin, conf, namespace, prefix string
	var count int
	c := &cobra.Command{Use: "cni", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		stdin, err := networkConfig(conf)
		if err != nil {
			return err
		}
		dir, err := os.MkdirTemp("", "weir-cni-")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		var res CNIResult
		call := func(command string, i int, into *[]float64) error {
			cmd := pluginCommand(plugin, stdin, command, dir, namespace, prefix, i, i)
			began := time.Now()
			out, err := cmd.CombinedOutput()
			*into = append(*into, float64(time.Since(began).Microseconds())/1000)
			if err != nil {
				return fmt.Errorf("%s %d: %w: %s", command, i, err, out)
			}
			return nil
		}
		made := 0
		var failed error
		for ; made < count && failed == nil; made++ {
			began := time.Now()
			if failed = makeNetns(filepath.Join(dir, fmt.Sprint(made))); failed == nil {
				var version []float64
				failed = call("VERSION", made, &version)
			}
			res.Control = append(res.Control, float64(time.Since(began).Microseconds())/1000)
			if failed == nil {
				failed = call("ADD", made, &res.Add)
			}
		}
		for i := range made {
			if err := call("DEL", i, &res.Del); failed == nil {
				failed = err
			}
			_ = unix.Unmount(filepath.Join(dir, fmt.Sprint(i)), unix.MNT_DETACH)
		}
		if failed != nil {
			return failed
		}
		return say(res)
	}}
	c.Flags().StringVar(&plugin, "plugin", "/opt/cni/bin/weir-cni", "")
	c.Flags().StringVar(&conf, "conf", "/etc/cni/net.d/10-weir.conflist", "")
	c.Flags().StringVar(&namespace, "namespace", "", "")
	c.Flags().StringVar(&prefix, "prefix", "", "")
	c.Flags().IntVar(&count, "count", 100, "")
	return c
}

// pluginCommand is a call of the plugin for container PREFIX-i of pod PREFIX-pod, whose network
// namespace is the file i of dir.
func pluginCommand(plugin string, stdin []byte, command, dir, namespace, prefix string, pod, i int) *exec.Cmd {
	cmd := exec.Command(plugin)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, fmt.Sprintf("CNI_CONTAINERID=%s-%d", prefix, i), "CNI_IFNAME=eth0",
		"CNI_NETNS="+filepath.Join(dir, fmt.Sprint(i)), "CNI_PATH="+filepath.Dir(plugin),
		fmt.Sprintf("CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s-%d;K8S_POD_INFRA_CONTAINER_ID=x", namespace, prefix, pod))
	return cmd
}

// makeNetns makes a network namespace that a file refers to.
func makeNetns(path string) error {
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return err
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with its namespace
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("make a network namespace: %w", err)
			return
		}
		done <- unix.Mount(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()), path, "", unix.MS_BIND, "")
	}()
	return <-done
}

// networkConfig makes of a list with one plugin what the runtime hands to that plugin.
func networkConfig(path string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return pluginConfig(raw, strings.TrimSuffix(filepath.Base(path), filepath.Ext(path)))
}

// pluginConfig takes the first plugin out of a list and gives it the list's name and version (CNI
// specification, section 3).
func pluginConfig(list []byte, what string) ([]byte, error) {
	var l struct {
		Name       string           `json:"name"`
		CNIVersion string           `json:"cniVersion"`
		Plugins    []map[string]any `json:"plugins"`
	}
	if err := json.Unmarshal(list, &l); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if len(l.Plugins) == 0 {
		return nil, errors.New(what + " has no plugin")
	}
	p := l.Plugins[0]
	p["name"], p["cniVersion"] = l.Name, l.CNIVersion
	return json.Marshal(p)
}
