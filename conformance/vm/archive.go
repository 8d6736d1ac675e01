package vm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// ErrNoArchive says that the Debian archive cannot be asked on this machine.
var ErrNoArchive = errors.New("the Debian archive cannot be asked")

const mendArchive = "conformance/vm needs the network and Debian's apt, dpkg-deb and debian-archive-keyring once, to fill its cache; " +
	"copy conformance/vm/cache from a machine that has it, or run there"

// archive is an apt for amd64 packages with sources, lists and downloads of its own below dir; the machine's stay untouched.
type archive struct {
	dir  string
	conf string
	log  Logf
}

func newArchive(dir string, log Logf) (*archive, error) {
	for _, tool := range []string{"apt-get", "apt-cache", "dpkg-deb"} {
		if _, err := exec.LookPath(tool); err != nil {
			return nil, fmt.Errorf("%w: no command %s; %s", ErrNoArchive, tool, mendArchive)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "archives", "partial"), 0o755); err != nil {
		return nil, err
	}
	return &archive{dir: dir, conf: filepath.Join(dir, "apt.conf"), log: log}, nil
}

var debianSuite = regexp.MustCompile(`^(stable|oldstable|testing|unstable|sid|bookworm|trixie|forky|duke)$`)

// mirror is the address of the Debian archive as the machine reaches it: the source that has a suite's -updates beside the suite.
func (a *archive) mirror(ctx context.Context) (string, error) {
	out, err := a.run(ctx, "apt-get", "indextargets", "--no-release-info", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)")
	if err != nil {
		return "", err
	}
	uri := debian(out)
	if uri == "" {
		return "", fmt.Errorf("%w: it is not among this machine's apt sources; %s", ErrNoArchive, mendArchive)
	}
	return uri, nil
}

// debian picks the Debian archive from lines of an address, a suite and a component.
func debian(targets string) (uri string) {
	suites := map[string][]string{}
	var order []string
	for line := range strings.Lines(targets) {
		if f := strings.Fields(line); len(f) == 3 && f[2] == "main" {
			if suites[f[0]] == nil {
				order = append(order, f[0])
			}
			suites[f[0]] = append(suites[f[0]], f[1])
		}
	}
	for _, candidate := range order {
		if !slices.ContainsFunc(suites[candidate], debianSuite.MatchString) {
			continue
		}
		if slices.ContainsFunc(suites[candidate], func(s string) bool { return strings.HasSuffix(s, "-updates") }) {
			return candidate
		}
		if uri == "" {
			uri = candidate
		}
	}
	return uri
}

const keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"

// use points apt at one suite and reads its list of packages; what it knew before is forgotten.
func (a *archive) use(ctx context.Context, mirror, suite string) error {
	lists := filepath.Join(a.dir, "lists")
	if err := os.RemoveAll(lists); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(lists, "partial"), 0o755); err != nil {
		return err
	}
	source := fmt.Sprintf("Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nArchitectures: amd64\nTargets: Packages\n", mirror, suite)
	if _, err := os.Stat(keyring); err == nil {
		source += "Signed-By: " + keyring + "\n"
	}
	if err := os.WriteFile(filepath.Join(a.dir, "one.sources"), []byte(source), 0o644); err != nil {
		return err
	}
	// The machine's hooks are for its own lists, and what it has installed does not matter. Without Error-Mode, an update that
	// reached nothing succeeds. The sandbox user cannot enter a private temporary directory.
	conf := fmt.Sprintf(`#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
#clear APT::Architectures;
APT::Architecture "amd64";
APT::Architectures { "amd64"; };
Dir::Etc::sourcelist "%[1]s/one.sources";
Dir::Etc::sourceparts "/dev/null";
Dir::Etc::preferencesparts "/dev/null";
Dir::State::Lists "%[1]s/lists";
Dir::State::status "%[1]s/status";
Dir::Cache "%[1]s";
APT::Update::Error-Mode "any";
APT::Sandbox::User "root";
Acquire::Languages "none";
Acquire::Retries "2";
Acquire::Check-Valid-Until "false";
Acquire::http::Timeout "20";
Acquire::https::Timeout "20";
`, a.dir)
	if err := os.WriteFile(filepath.Join(a.dir, "status"), nil, 0o644); err != nil {
		return err
	}
	if err := os.WriteFile(a.conf, []byte(conf), 0o644); err != nil {
		return err
	}
	_, err := a.run(ctx, "apt-get", "-c", a.conf, "update")
	return err
}

// version is the newest version of a package in the suite in use, "" when it has none.
func (a *archive) version(ctx context.Context, pkg string) (string, error) {
	out, err := a.run(ctx, "apt-cache", "-c", a.conf, "madison", pkg)
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(out) {
		if f := strings.Split(line, "|"); len(f) == 3 && strings.TrimSpace(f[0]) == pkg {
			return strings.TrimSpace(f[1]), nil
		}
	}
	return "", nil
}

// depends lists the packages that a package depends on whose names begin with one of prefixes.
func (a *archive) depends(ctx context.Context, pkg string, prefixes ...string) ([]string, error) {
	out, err := a.run(ctx, "apt-cache", "-c", a.conf, "depends", "--important", pkg)
	if err != nil {
		return nil, err
	}
	var all []string
	for line := range strings.Lines(out) {
		name, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: ")
		if ok && slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) }) {
			all = append(all, name)
		}
	}
	return all, nil
}

// unpack downloads the newest version of packages of the suite in use and unpacks them below dir; nothing is installed.
func (a *archive) unpack(ctx context.Context, dir string, packages ...string) error {
	debs, err := os.MkdirTemp(a.dir, "debs-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(debs)
	a.log.printf("downloading %s", strings.Join(packages, " "))
	if _, err := a.runIn(ctx, debs, "apt-get", append([]string{"-c", a.conf, "download"}, packages...)...); err != nil {
		return err
	}
	found, err := filepath.Glob(filepath.Join(debs, "*.deb"))
	if err != nil {
		return err
	}
	if len(found) != len(packages) {
		return fmt.Errorf("apt-get left %d packages of %d (%s)", len(found), len(packages), strings.Join(packages, " "))
	}
	for _, deb := range found {
		if _, err := a.run(ctx, "dpkg-deb", "-x", deb, dir); err != nil {
			return err
		}
	}
	return nil
}

func (a *archive) run(ctx context.Context, name string, args ...string) (string, error) {
	return a.runIn(ctx, "", name, args...)
}

func (a *archive) runIn(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "LC_ALL=C", "LANGUAGE=")
	var out, all bytes.Buffer
	cmd.Stdout, cmd.Stderr = io.MultiWriter(&out, &all), &all
	cmd.WaitDelay = 2 * time.Second // a helper of apt that is stuck must not hold us up
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return "", fmt.Errorf("%w: %s: %w\n%s\n%s", ErrNoArchive, strings.Join(cmd.Args, " "), err, lastLines(all.String(), 8), mendArchive)
	}
	return out.String(), nil
}

// lastLines is the end of a text, n lines of it at most.
func lastLines(s string, n int) string {
	lines := strings.Split(strings.TrimRight(s, "\r\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
