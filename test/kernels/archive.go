// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// suites are Debian's, from which kernels come.
var suites = []string{"bullseye", "bookworm", "trixie", "sid"}

// archive is Debian's, as the machine's own apt reaches it, with state of its own.
type archive struct {
	dir     string
	uri     string
	options []string
}

// kernel is one that was unpacked.
type kernel struct{ release, image, modules string }

func openArchive(ctx context.Context, dir string) (*archive, error) {
	uris, err := output(ctx, "", "apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages")
	if err != nil {
		return nil, err
	}
	uri := ""
	for _, line := range strings.Fields(uris) {
		if strings.HasSuffix(line, "/debian/") {
			uri = line
		}
	}
	if uri == "" {
		return nil, errors.New("the machine's apt has no source of Debian's packages; the kernels come from where these do")
	}
	a := &archive{dir: dir, uri: uri, options: []string{"-o", "APT::Architecture=amd64", "-o", "APT::Sandbox::User=root", "-o", "Dir::Etc::sourceparts=-", "-o", "Acquire::Retries=3"}}
	for option, name := range map[string]string{"Dir::State": "state", "Dir::Cache": "cache", "Dir::State::status": "status", "Dir::Etc::sourcelist": "sources.list"} {
		a.options = append(a.options, "-o", option+"="+filepath.Join(dir, name))
	}
	var list strings.Builder
	for _, suite := range suites {
		fmt.Fprintf(&list, "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] %s %s main\n", uri, suite)
	}
	err = errors.Join(os.MkdirAll(filepath.Join(dir, "state/lists/partial"), 0o755), os.MkdirAll(filepath.Join(dir, "cache/archives/partial"), 0o755),
		os.WriteFile(filepath.Join(dir, "status"), nil, 0o644), os.WriteFile(filepath.Join(dir, "sources.list"), []byte(list.String()), 0o644))
	if err != nil {
		return nil, err
	}
	return a, a.update(ctx)
}

// update reads which packages there are, unless that was done within the day.
func (a *archive) update(ctx context.Context) error {
	stamp := filepath.Join(a.dir, "updated")
	if st, err := os.Stat(stamp); err == nil && time.Since(st.ModTime()) < 24*time.Hour {
		return nil
	}
	fmt.Println("reading which kernels there are")
	if err := a.apt(ctx, "apt-get", "-qq", "update"); err != nil {
		return err
	}
	return os.WriteFile(stamp, nil, 0o644)
}

func (a *archive) apt(ctx context.Context, tool string, args ...string) error {
	_, err := output(ctx, a.dir, tool, append(slices.Clone(a.options), args...)...)
	return err
}

// kernel brings the newest one whose version begins with the given one. One that is there is not
// brought again.
func (a *archive) kernel(ctx context.Context, version string) (*kernel, error) {
	if !regexp.MustCompile(`^[0-9]+(\.[0-9]+)*$`).MatchString(version) {
		return nil, errors.New("that is no version")
	}
	found, err := output(ctx, a.dir, "apt-cache", append(slices.Clone(a.options), "search", "--names-only",
		`^linux-(image|binary)-`+regexp.QuoteMeta(version)+`\.[^ ]*-cloud-amd64$`)...)
	if err != nil {
		return nil, err
	}
	best, numbers := "", []int(nil)
	for line := range strings.Lines(found) {
		name, _, _ := strings.Cut(line, " ")
		if n := numbersOf(name); !strings.Contains(name, "unsigned") && (best == "" || slices.Compare(n, numbers) > 0 ||
			slices.Equal(n, numbers) && strings.HasPrefix(name, "linux-binary-")) {
			best, numbers = name, n
		}
	}
	if best == "" {
		return nil, fmt.Errorf("Debian has none in %s", strings.Join(suites, ", "))
	}
	bring := []string{best}
	if rest, is := strings.CutPrefix(best, "linux-binary-"); is {
		bring = append(bring, "linux-modules-"+rest)
	}
	dir := filepath.Join(a.dir, best)
	if _, err := os.Stat(dir); err != nil {
		fmt.Println("bringing", best)
		part := dir + ".part"
		if err := errors.Join(os.RemoveAll(part), os.MkdirAll(part, 0o755)); err != nil {
			return nil, err
		}
		if _, err := output(ctx, part, "apt-get", append(append(slices.Clone(a.options), "-qq", "download"), bring...)...); err != nil {
			return nil, err
		}
		packages, err := filepath.Glob(filepath.Join(part, "*.deb"))
		if err != nil {
			return nil, err
		}
		for _, p := range packages {
			if err := errors.Join(command(ctx, part, "dpkg-deb", "-x", p, "."), os.Remove(p)); err != nil {
				return nil, err
			}
		}
		if err := os.Rename(part, dir); err != nil {
			return nil, err
		}
	}
	one := func(patterns ...string) string {
		for _, p := range patterns {
			if got, err := filepath.Glob(filepath.Join(dir, p)); err == nil && len(got) > 0 {
				return got[0]
			}
		}
		return ""
	}
	k := &kernel{image: one("boot/vmlinuz-*", "usr/lib/modules/*/vmlinuz"), modules: one("lib/modules/*", "usr/lib/modules/*")}
	if k.image == "" || k.modules == "" {
		return nil, fmt.Errorf("%s has no kernel or no modules where they are looked for", best)
	}
	k.release = filepath.Base(k.modules)
	return k, nil
}

// numbersOf are the numbers in a name, by which versions compare.
func numbersOf(name string) (out []int) {
	for _, s := range regexp.MustCompile(`[0-9]+`).FindAllString(name, -1) {
		n := 0
		_, _ = fmt.Sscan(s, &n) // 0 where there is no number
		out = append(out, n)
	}
	return out
}
