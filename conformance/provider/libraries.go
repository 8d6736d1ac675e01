// SPDX-License-Identifier: BSD-2-Clause

package provider

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/headers"
)

// packages lists the packages that are needed to run programs with rdma-core libraries of another release, including
// the C library of that time. The name of librdmacm's package depends on the release.
var packages = []string{"libibverbs1", "ibverbs-providers", "libnl-3-200", "libnl-route-3-200", "libc6",
	"libibverbs-dev", "librdmacm-dev",
	"ibverbs-utils", "python3-pyverbs", "libexpat1", "zlib1g", "libffi8"} // for python.go

const librdmacm = "librdmacm1"

// cacheVersion must change with packages, so that caches with an older list are not used.
const cacheVersion = 4

// Libraries are the unpacked libraries of a release for an architecture.
type Libraries struct{ Release, Arch, Root string }

// ErrNoArchive means that the libraries are not in the cache and the Debian archive cannot be reached.
var ErrNoArchive = errors.New("the Debian archive cannot be reached")

// machine holds the parameters of an architecture.
type machine struct {
	triplet  string // name of Debian's library directory and prefix of cross compilers
	loader   string // the C library's dynamic loader
	emulator string // emulator that runs the programs on other machines
}

var machines = map[string]machine{
	"amd64": {"x86_64-linux-gnu", "ld-linux-x86-64.so.2", "qemu-x86_64"},
	"arm64": {"aarch64-linux-gnu", "ld-linux-aarch64.so.1", "qemu-aarch64"},
}

// Open returns the libraries of a release pinned in headers.lock for this machine, from the cache or the archive.
func Open(ctx context.Context, release string) (*Libraries, error) {
	return OpenFor(ctx, release, goruntime.GOARCH)
}

// OpenFor is like Open, for an architecture whose programs run here, possibly with qemu's user mode emulation.
func OpenFor(ctx context.Context, release, arch string) (*Libraries, error) {
	if _, ok := machines[arch]; !ok {
		return nil, fmt.Errorf("%w for %s: the emulated kernel is untested there", errors.ErrUnsupported, arch)
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	root := filepath.Join(cache, fmt.Sprintf("%s-%s-%d", release, arch, cacheVersion))
	l := &Libraries{Release: release, Arch: arch, Root: root}
	if _, err := os.Stat(l.Root); err == nil {
		return l, nil
	}
	return l, l.fill(ctx, cache)
}

// fill unpacks the packages. The directory appears atomically.
func (l *Libraries) fill(ctx context.Context, cache string) error {
	pinned, err := pinnedRelease(l.Release)
	if err != nil {
		return err
	}
	suites, wanted := pinned.Suites, append([]string{}, packages...)
	for _, p := range pinned.Packages {
		if strings.HasPrefix(p.Name, librdmacm) {
			wanted = append(wanted, p.Name)
		}
	}
	work, err := os.MkdirTemp(cache, "fill-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	archive, err := fetch.OpenPackages(ctx, filepath.Join(work, "apt"), l.Arch, suites...)
	if err != nil {
		return fmt.Errorf("%w: %w; conformance/provider needs it to fill its cache", ErrNoArchive, err)
	}
	root := filepath.Join(work, "root")
	if err := os.Mkdir(root, 0o755); err != nil {
		return err
	}
	var errs []error
	for _, suite := range suites {
		if err := archive.Use(ctx, suite); err != nil {
			errs = append(errs, fmt.Errorf("%w: %w", ErrNoArchive, err))
			continue
		}
		version, err := archive.Version(ctx, packages[0])
		if err != nil {
			return err
		}
		if !strings.HasPrefix(version, l.Release+"-") {
			errs = append(errs, fmt.Errorf("suite %s has %s %s instead of release %s: pin another release (make bump)",
				suite, packages[0], version, l.Release))
			continue
		}
		python, err := pythonPackages(ctx, archive)
		if err != nil {
			return err
		}
		if err := archive.Unpack(ctx, root, append(wanted, python...)...); err != nil {
			return err
		}
		if err := os.Rename(root, l.Root); err != nil {
			if _, missing := os.Stat(l.Root); missing != nil { // unless another process was faster
				return err
			}
		}
		return nil
	}
	return errors.Join(errs...)
}

// pinnedRelease returns the entry of headers.lock for a release of rdma-core.
func pinnedRelease(release string) (*fetch.Release, error) {
	lock, err := fetch.ParseLock("headers.lock", headers.Lock())
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(lock.Releases, func(r *fetch.Release) bool {
		return r.Project == "rdma-core" && r.Name == release
	})
	if i < 0 {
		return nil, fmt.Errorf("headers.lock has no release %s of rdma-core", release)
	}
	return lock.Releases[i], nil
}

// dir returns the directory of rdma-core's libraries, and path the search path of the loader, since older C libraries
// are in /lib.
func (l *Libraries) dir() string {
	return filepath.Join(l.Root, "usr", "lib", machines[l.Arch].triplet)
}
func (l *Libraries) path() string {
	return l.dir() + ":" + filepath.Join(l.Root, "lib", machines[l.Arch].triplet)
}

// loader returns the path of the C library's loader.
func (l *Libraries) loader() (path string) {
	for dir := range strings.SplitSeq(l.path(), ":") {
		path = filepath.Join(dir, machines[l.Arch].loader)
		if _, err := os.Stat(path); err == nil {
			break
		}
	}
	return path
}

// foreign reports whether this machine needs an emulator to run the libraries.
func (l *Libraries) foreign() bool { return l.Arch != goruntime.GOARCH }

// compiler returns the C compiler for the libraries' architecture.
func (l *Libraries) compiler() string {
	if l.foreign() {
		return machines[l.Arch].triplet + "-gcc"
	}
	return "cc"
}

// include returns the include directory of the release.
func (l *Libraries) include() string { return filepath.Join(l.Root, "usr", "include") }

// cacheDir returns conformance/provider/cache of this checkout, also for programs in a module below it.
func cacheDir() (string, error) {
	dir, err := os.Getwd()
	for ; err == nil; dir = filepath.Dir(dir) {
		thisDir := filepath.Join(dir, "conformance", "provider")
		if _, err := os.Stat(filepath.Join(thisDir, "libraries.go")); err == nil {
			return filepath.Join(thisDir, "cache"), nil
		}
		if dir == filepath.Dir(dir) {
			return "", os.ErrNotExist
		}
	}
	return "", err
}
