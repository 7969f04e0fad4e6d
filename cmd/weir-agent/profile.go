// SPDX-License-Identifier: Apache-2.0

//go:build profile

package main

import (
	"log/slog"
	"net/http"
	_ "net/http/pprof" // for benchmarks: an agent that is released has no profiles
	"os"
)

// init serves profiles where WEIR_PROFILE_ADDR says, in agents that are built with the tag profile.
func init() {
	if addr := os.Getenv("WEIR_PROFILE_ADDR"); addr != "" {
		go func() { slog.Error("profiles are not served", "err", http.ListenAndServe(addr, nil)) }()
	}
}
