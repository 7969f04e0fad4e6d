// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
)

// probeCommand asks a "who" server again and again, each time as a new flow, and writes a line
// "NANOSECONDS NAME" whenever another one answers than before; NAME is "-" when nobody does. The
// time is that at which the request began.
func probeCommand() *cobra.Command {
	var every, timeout time.Duration
	var udp bool
	c := &cobra.Command{Use: "probe ADDRESS", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		ctx := untilStdinEnds()
		once := dialTCP
		if udp {
			once = dialUDP
		}
		last := ""
		for ctx.Err() == nil {
			began := time.Now()
			answer, _, _, err := once(args[0], timeout)
			name := "-"
			if f := strings.Fields(answer); err == nil && len(f) > 0 {
				name = f[0]
			}
			if name != last {
				last = name
				if err := say(fmt.Sprintf("%d %s", began.UnixNano(), name)); err != nil {
					return err
				}
			}
			time.Sleep(every)
		}
		return nil
	}}
	c.Flags().DurationVar(&every, "every", time.Millisecond, "pause between two requests")
	c.Flags().DurationVar(&timeout, "timeout", 20*time.Millisecond, "for one")
	c.Flags().BoolVar(&udp, "udp", false, "")
	return c
}

// getCommand fetches a page; certificates are not checked.
func getCommand() *cobra.Command {
	var timeout time.Duration
	c := &cobra.Command{Use: "get URL", Args: cobra.ExactArgs(1), RunE: func(_ *cobra.Command, args []string) error {
		client := &http.Client{Timeout: timeout, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
		resp, err := client.Get(args[0])
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		if _, err := io.Copy(os.Stdout, resp.Body); err != nil {
			return err
		}
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s answers %s", args[0], resp.Status)
		}
		return nil
	}}
	c.Flags().DurationVar(&timeout, "timeout", 30*time.Second, "")
	return c
}

// escapeCommand tries from its first moment to get a connection or an answer, and ends with code 3
// if it does: the first program of a pod that must not reach anybody.
func escapeCommand() *cobra.Command {
	var tcp, udp string
	var lasting time.Duration
	c := &cobra.Command{Use: "escape", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		ctx, cancel := context.WithTimeout(context.Background(), lasting)
		defer cancel()
		out := make(chan string, 1)
		try := func(to string, once func(string, time.Duration) (string, string, bool, error)) {
			for ctx.Err() == nil {
				go func() {
					if answer, _, _, err := once(to, lasting); err == nil {
						select {
						case out <- answer:
						default:
						}
					}
				}()
				time.Sleep(5 * time.Millisecond)
			}
		}
		go try(tcp, dialTCP)
		go try(udp, dialUDP)
		select {
		case answer := <-out:
			fmt.Println("got out:", answer)
			os.Exit(3)
		case <-ctx.Done():
		}
		fmt.Println("never got out")
		return nil
	}}
	c.Flags().StringVar(&tcp, "tcp", "", "")
	c.Flags().StringVar(&udp, "udp", "", "")
	c.Flags().DurationVar(&lasting, "for", 2*time.Second, "")
	return c
}
