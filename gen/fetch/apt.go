// SPDX-License-Identifier: BSD-2-Clause

package fetch

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// EnvLists names an environment variable, and the variable a directory in which programs share what they have read from
// the archive: sources, lists and packages, so that they query each suite once. Whoever sets it removes the directory
// soon, since lists become stale.
const EnvLists = "GOVERBS_ARCHIVE"

// apt runs the machine's apt with separate sources, lists and downloads below dir. The machine's own are not changed.
type apt struct {
	rel    string
	arch   string // architecture of the packages; "" for the machine's
	dir    string
	suite  string // directory of the selected suite: dir, or one below that of EnvLists
	shared string // file that names the suite's directory to other programs; "" if it is not shared
	conf   string
}

// aptTools are part of Debian's essential packages.
var aptTools = []string{"apt-get", "apt-cache", "dpkg"}

// newApt creates the directories for a separate apt below dir.
func newApt(rel, dir string) (*apt, error) {
	for _, tool := range aptTools {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%s%w: no command %s; %s", of(rel), ErrNoApt, tool, hint(rel))
		}
	}
	if strings.ContainsAny(dir, "\"\\\n") {
		return nil, fmt.Errorf("%sapt cannot work in %q: set TMPDIR to a directory without quotes and backslashes",
			of(rel), dir)
	}
	return &apt{rel: rel, dir: dir}, os.MkdirAll(dir, 0o755)
}

// use selects one suite of a mirror and discards the previous lists, unless another program has shared those of the
// suite.
func (a *apt) use(m mirror, suite string) error {
	a.suite, a.shared = a.dir, ""
	if root := os.Getenv(EnvLists); root != "" {
		key := sum([]byte(strings.Join([]string{m.uri, suite, a.arch, m.trust}, "\n")))
		a.shared = filepath.Join(root, key[:16])
		if a.isShared() {
			return nil
		}
		err := os.MkdirAll(root, 0o755)
		if err == nil {
			a.suite, err = os.MkdirTemp(root, "suite-")
		}
		if err != nil {
			return err
		}
	}
	a.conf = filepath.Join(a.suite, "apt.conf")
	if err := os.RemoveAll(filepath.Join(a.suite, "lists")); err != nil {
		return err
	}
	for _, sub := range []string{"lists/partial", "cache/archives/partial", "debs"} {
		if err := os.MkdirAll(filepath.Join(a.suite, sub), 0o755); err != nil {
			return err
		}
	}
	sources := filepath.Join(a.suite, "one.sources")
	text := fmt.Sprintf("Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nTargets: Packages\n%s", m.uri, suite,
		m.trust)
	if a.arch != "" {
		text = "Architectures: " + a.arch + "\n" + text
	}
	if err := os.WriteFile(sources, []byte(text), 0o644); err != nil {
		return err
	}
	// A mirror with an expired list is acceptable, since checksums are verified. The machine's hooks apply to its own
	// lists. Without Error-Mode, apt-get exits successfully after a failed update. The sandbox user cannot access a
	// private temporary directory. Debian's container images turn off the two caches, which makes apt parse the lists for
	// each query.
	conf := fmt.Sprintf(`#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::Etc::sourcelist "%[1]s/one.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::State::Lists "%[1]s/lists";
Dir::Cache "%[1]s/cache";
Dir::Cache::pkgcache "pkgcache.bin";
Dir::Cache::srcpkgcache "srcpkgcache.bin";
APT::Update::Error-Mode "any";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "1";
Acquire::Check-Valid-Until "false";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
`, a.suite)
	if a.arch != "" { // installed packages and preferences of the machine do not apply to another architecture
		status := filepath.Join(a.suite, "status")
		if err := os.WriteFile(status, nil, 0o644); err != nil {
			return err
		}
		conf += fmt.Sprintf("#clear APT::Architectures;\nAPT::Architecture %[1]q;\nAPT::Architectures { %[1]q; };\n"+
			"Dir::State::status %[2]q;\nDir::Etc::preferencesparts \"/dev/null\";\n", a.arch, status)
	}
	return os.WriteFile(a.conf, []byte(conf), 0o644)
}

// errNoSuite means that the mirror is reachable but lacks the suite.
var errNoSuite = errors.New("no such suite")

// isShared reports whether another program has updated the lists, and then selects them.
func (a *apt) isShared() bool {
	suite, err := os.ReadFile(a.shared)
	conf := filepath.Join(string(suite), "apt.conf")
	if err != nil || !isFile(conf) {
		return false
	}
	a.suite, a.conf = string(suite), conf
	return true
}

func (a *apt) update(ctx context.Context, suite string) error {
	if a.shared != "" && a.isShared() {
		return nil
	}
	step := "querying the archive for suite " + suite
	_, err := a.run(ctx, step, "", "apt-get", "-c", a.conf, "update")
	var failed *ArchiveError
	if errors.As(err, &failed) &&
		(strings.Contains(failed.all, "404  Not Found") || strings.Contains(failed.all, "File not found")) {
		return errNoSuite
	}
	if err != nil {
		return err
	}
	// without Error-Mode, an old apt succeeds without downloading anything
	if got, _ := filepath.Glob(filepath.Join(a.suite, "lists", "*Packages*")); len(got) == 0 {
		return &ArchiveError{Release: a.rel, Step: step, Err: errors.New("apt-get downloaded no package list")}
	}
	if a.shared != "" {
		return publish(a.suite, a.shared, a.suite)
	}
	return nil
}

// versions lists the versions of a package in the selected suite, newest first.
func (a *apt) versions(ctx context.Context, pkg string) ([]string, error) {
	out, err := a.run(ctx, "looking for "+pkg, "", "apt-cache", "-c", a.conf, "madison", pkg)
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(out) {
		// libibverbs-dev |   44.0-2 | http://… bookworm/main amd64 Packages
		if f := strings.Split(line, "|"); len(f) == 3 && strings.TrimSpace(f[0]) == pkg {
			all = append(all, strings.TrimSpace(f[1]))
		}
	}
	return all, nil
}

// unpack downloads a package of the selected suite, unless it is there, and unpacks it below dir. It installs nothing.
func (a *apt) unpack(ctx context.Context, pkg, version, dir string) error {
	what := pkg + " " + version
	deb, err := a.download(ctx, pkg, version)
	if err != nil {
		return err
	}
	if err := checkUnpacked(ctx, deb); err != nil {
		return &ArchiveError{Release: a.rel, Step: "unpacking " + what, Err: err}
	}
	_, err = a.run(ctx, "unpacking "+what, "", "dpkg", "-x", deb, dir)
	return err
}

func (a *apt) download(ctx context.Context, pkg, version string) (deb string, err error) {
	debs := filepath.Join(a.suite, "debs")
	home := filepath.Join(debs, pkg+"="+version)
	find := func(dir string) ([]string, error) { return filepath.Glob(filepath.Join(dir, pkg+"_*.deb")) }
	if found, err := find(home); err != nil || len(found) == 1 {
		return strings.Join(found, ""), err
	}
	fresh, err := os.MkdirTemp(debs, "download-")
	if err != nil {
		return "", err
	}
	step := "downloading " + pkg + " " + version
	if _, err := a.run(ctx, step, fresh, "apt-get", "-c", a.conf, "download", pkg+"="+version); err != nil {
		return "", err
	}
	found, err := find(fresh)
	if err != nil {
		return "", err
	}
	if len(found) != 1 {
		return "", &ArchiveError{Release: a.rel, Step: step,
			Err: fmt.Errorf("apt-get left %d packages instead of one", len(found))}
	}
	if err := os.Rename(fresh, home); err != nil { // another program was faster
		return found[0], nil
	}
	return filepath.Join(home, filepath.Base(found[0])), nil
}

// maxUnpacked limits the unpacked size of a package, and thereby the number of its files.
const maxUnpacked = 1 << 30

// checkUnpacked checks the unpacked size of a package before anything is written to disk.
func checkUnpacked(ctx context.Context, deb string) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	cmd := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", deb)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	n, _ := io.Copy(io.Discard, io.LimitReader(pipe, maxUnpacked+1))
	if n > maxUnpacked {
		cancel()
		_ = cmd.Wait()
		return fmt.Errorf("%s: unpacked size exceeds %d MiB", deb, maxUnpacked>>20)
	}
	if err := cmd.Wait(); err != nil {
		return fmt.Errorf("%s: dpkg-deb --fsys-tarfile: %w", deb, err)
	}
	return nil
}

// run returns the standard output of a command. If the command fails, the error is an ArchiveError with the last lines
// of its output.
func (a *apt) run(ctx context.Context, step, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LANGUAGE=")
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	// apt's helpers exit with apt, but one that hangs and holds the pipe must not block Wait
	cmd.WaitDelay = 2 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		err = ctx.Err()
	} else if err != nil {
		err = fmt.Errorf("%s: %w", name, err)
	}
	if err != nil {
		all := out.String() + stderr.String()
		return "", &ArchiveError{Release: a.rel, Step: step, Err: err, Output: lastLines(all), all: all}
	}
	return out.String(), nil
}

func lastLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-8):], "\n")
}
