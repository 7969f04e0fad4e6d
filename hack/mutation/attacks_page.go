// SPDX-License-Identifier: Apache-2.0

package main

// attacksPage are the guards of the page in the browser.
var attacksPage = []mutant{
	{fault{"another user of an operator's machine asks the operator's page", "internal/ui/guard.go",
		"subtle.ConstantTimeCompare([]byte(got), []byte(token)) != 1", "subtle.ConstantTimeCompare([]byte(got), []byte(token)) > 1"},
		"./internal/ui", "^TestHostilePageWithoutToken$"},
	{fault{"a web page in an operator's browser reaches the operator's page by DNS rebinding", "internal/ui/guard.go",
		"return hostOf(o) == r.Host", "return hostOf(o) != \"\""},
		"./internal/ui", "^TestHostilePageByOtherName$"},
	{fault{"a web page of another origin asks the operator's page", "internal/ui/guard.go",
		"!slices.Contains(s.Origins, origin)", "origin == s.Origins[0]+\"/\""},
		"./internal/ui", "^TestHostilePageOfOthers$"},
	{fault{"a compromised node shows a name as another one on the operator's page by its records", "internal/ui/guard.go",
		"if c == '\\n' || unicode.IsPrint(c) {", "if c == '\\n' || !unicode.IsControl(c) {"},
		"./internal/ui", "^TestHostileWordsOnPage$"},
	{fault{"another user of an operator's machine reads the page's token among the arguments of programs", "cmd/weir/ui/ui.go",
		"exec.Command(program, file)", "exec.Command(program, address)"},
		"./cmd/weir/ui", "^TestHostileArgumentsOfBrowser$"},
}
