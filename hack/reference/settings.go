// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/weir-net/weir/internal/config"
)

const settingsHead = "A setting is a field of the FelixConfiguration `default`, of the FelixConfiguration `node.<name>` for one node, or a\n" +
	"variable of the agent's environment. The environment wins over `node.<name>`, which wins over `default`. A value that is\n" +
	"not valid is reported by `weir status`, and the last good value stays in force.\n\n" +
	"```\n" +
	"weir patch felixconfiguration default --patch '{\"spec\":{\"bpfExternalServiceMode\":\"DSR\"}}'\n" +
	"kubectl -n kube-system set env ds/weir-node FELIX_BPFExternalServiceMode=dsr\n" +
	"```\n"

// settings is a table of the fields that have an effect, and a list of those that have none.
func settings() (string, error) {
	var page, without strings.Builder
	page.WriteString(settingsHead + "\n## In force\n\n| field | environment | default | allowed | meaning |\n|---|---|---|---|---|\n")
	for _, f := range config.All() {
		switch {
		case f.InForce():
			name := code(f.Name)
			if f.Name == "" {
				name = "(environment alone)"
			}
			fmt.Fprintf(&page, "| %s | %s | %s | %s | %s |\n", name, code(f.Env), code(f.Default), cell(f.Allowed), cell(f.Doc))
		case f.Lacks != "":
			fmt.Fprintf(&without, "| %s | %s | the node is degraded: %s |\n", code(f.Name), code(f.Default), cell(f.Lacks))
		case f.Never != "":
			fmt.Fprintf(&without, "| %s | %s | not applicable: %s |\n", code(f.Name), code(f.Default), cell(f.Never))
		default:
			fmt.Fprintf(&without, "| %s | %s | `weir status` lists the field as unsupported |\n", code(f.Name), code(f.Default))
		}
	}
	page.WriteString("\n## Without effect\n\nFields that Weir knows and does not act on. With their default nothing is said.\n\n| field | default | with another value |\n|---|---|---|\n" + without.String())
	return page.String(), nil
}

// code is a text as code in a cell of a table; nothing for an empty one.
func code(text string) string {
	if text == "" {
		return ""
	}
	return "`" + cell(text) + "`"
}

// cell is a text in a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }
