// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// Kernel is a kernel that guests can run, with its libraries.
type Kernel struct {
	Name    string   // as passed to Prepare: "6.12"
	Suites  []string // suites of the Debian archive, in the order in which they are searched for the kernel
	Library string   // suite of rdma-core and of the C library
}

// Kernels lists the kernels that Prepare accepts, oldest first.
var Kernels = []Kernel{
	{Name: "6.1", Suites: []string{"bookworm"}, Library: "bookworm"},                    // rdma-core 44
	{Name: "6.12", Suites: []string{"bookworm-backports", "trixie"}, Library: "trixie"}, // rdma-core 56
	{Name: "7", Suites: []string{"testing", "sid"}, Library: "testing"},
}

// wantedModules are loaded in every guest, after their dependencies. rdma_rxe does not list crc32_generic as a
// dependency but cannot add a device without it, and neither does a dependency of nf_tables list crc32c_generic.
var wantedModules = []string{"crc32_generic", "crc32c_generic", "dummy", "veth", "8021q", "bonding", "virtio_pci",
	"virtio_net", "nf_tables", "nft_reject_inet", "ib_uverbs", "rdma_ucm", "rdma_rxe"}

// optionalModules are built into some kernels, or do not exist.
var optionalModules = map[string]bool{"crc32_generic": true, "crc32c_generic": true}

// nvdimmModules are loaded in guests with persistent memory: drivers and a file system.
var nvdimmModules = []string{"crc32c_generic", "ext4", "nfit", "nd_pmem", "device_dax", "dax_pmem"}

// libraryPackages contain the shared libraries of guests and rdma-core's test programs.
var libraryPackages = []string{"libc6", "libgcc-s1", "libibverbs1", "ibverbs-providers", "librdmacm1", "libnl-3-200",
	"libnl-route-3-200", "ibverbs-utils", "rdmacm-utils", "librpma0"}

// optionalPackages are missing in some suites; librpma is no longer developed.
var optionalPackages = map[string]bool{"librpma0": true}

// Image is a kernel with modules and libraries on disk.
type Image struct {
	Kernel  string   // name
	Version string   // of the kernel's package: "6.1.192-2"
	Library string   // version of libibverbs1
	Modules []string // files in the directory modules, in load order
	NVDIMM  []string // additional modules for persistent memory, in load order
	dir     string
	siw     string // file of module siw, with [Image.WithSIW]
}

func (i *Image) kernelFile() string { return filepath.Join(i.dir, "vmlinuz") }
func (i *Image) root() string       { return filepath.Join(i.dir, "root") }
func (i *Image) moduleFile(name string) string {
	if name == SIW {
		return i.siw
	}
	return filepath.Join(i.dir, "modules", name+".ko")
}

// driver is the driver of the guest's RDMA device.
func (i *Image) driver() string {
	if i.siw != "" {
		return SIW
	}
	return RXE
}

// CacheDir returns the directory of images: GOVERBS_VM_CACHE, or conformance/vm/cache of this checkout.
func CacheDir() string {
	if dir := os.Getenv("GOVERBS_VM_CACHE"); dir != "" {
		return dir
	}
	return filepath.Join(moduleRoot(), "conformance", "vm", "cache")
}

// find returns the kernel with this name.
func find(name string) (Kernel, error) {
	var have []string
	for _, k := range Kernels {
		if k.Name == name {
			return k, nil
		}
		have = append(have, k.Name)
	}
	return Kernel{}, fmt.Errorf("unknown kernel %q; use one of %s", name, strings.Join(have, ", "))
}

// recipe returns a digest that differs between versions of this package that build different images.
func (k Kernel) recipe() string {
	text, err := json.Marshal([]any{"1", k, wantedModules, nvdimmModules, libraryPackages})
	if err != nil {
		panic(err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(text))[:8]
}

// ErrNoImage means that an image is not in the cache.
var ErrNoImage = errors.New("not in the cache")

// Cached returns a kernel's image from the cache, or [ErrNoImage].
func Cached(name, cacheDir string) (*Image, error) {
	k, err := find(name)
	if err != nil {
		return nil, err
	}
	i := &Image{dir: filepath.Join(cacheDir, k.Name+"-"+k.recipe())}
	text, err := os.ReadFile(filepath.Join(i.dir, "image.json"))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("kernel %s: %w; download it with go run ./conformance/vm/cmd/vmtest -fetch -kernel %s",
			name, ErrNoImage, name)
	}
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(text, i); err != nil {
		return nil, fmt.Errorf("%s: %w", i.dir, err)
	}
	return i, nil
}

// Prepare returns a kernel's image from the cache, or downloads it from the Debian archive and unpacks it. It installs
// nothing. The download has about 80 MB, of which 40 MB are kept.
func Prepare(ctx context.Context, name, cacheDir string, log Logf) (*Image, error) {
	image, err := Cached(name, cacheDir)
	if !errors.Is(err, ErrNoImage) {
		return image, err
	}
	k, err := find(name)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cacheDir, 0o755); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp(cacheDir, "making-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	if err := k.make(ctx, work, log); err != nil {
		return nil, fmt.Errorf("kernel %s: %w", name, err)
	}
	// the rename makes the image appear atomically; a concurrent process uses the image that was first
	if err := os.Rename(filepath.Join(work, "image"), filepath.Join(cacheDir, k.Name+"-"+k.recipe())); err != nil {
		if image, again := Cached(name, cacheDir); again == nil {
			return image, nil
		}
		return nil, err
	}
	return Cached(name, cacheDir)
}

// make writes the image to work/image.
func (k Kernel) make(ctx context.Context, work string, log Logf) error {
	a, err := openArchive(ctx, filepath.Join(work, "apt"), log, append([]string{k.Library}, k.Suites...)...)
	if err != nil {
		return err
	}
	image := &Image{Kernel: k.Name, dir: filepath.Join(work, "image")}
	for _, dir := range []string{"modules", "root"} {
		if err := os.MkdirAll(filepath.Join(image.dir, dir), 0o755); err != nil {
			return err
		}
	}
	unpacked := filepath.Join(work, "kernel")
	if image.Version, err = k.download(ctx, a, unpacked); err != nil {
		return err
	}
	if err := image.copyKernel(unpacked); err != nil {
		return err
	}
	if err := a.Use(ctx, k.Library); err != nil {
		return err
	}
	if image.Library, err = a.Version(ctx, "libibverbs1"); err != nil {
		return err
	}
	packages, err := a.currentNames(ctx, libraryPackages)
	if err != nil {
		return err
	}
	if err := a.unpack(ctx, image.root(), packages...); err != nil {
		return err
	}
	for _, dir := range []string{"usr/share", "usr/lib/x86_64-linux-gnu/gconv"} {
		if err := os.RemoveAll(filepath.Join(image.root(), dir)); err != nil {
			return err
		}
	}
	text, err := json.MarshalIndent(image, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(image.dir, "image.json"), text, 0o644)
}

// currentNames returns the names of packages in the current suite. Some packages were renamed when time_t became 64
// bits wide.
func (a *archive) currentNames(ctx context.Context, packages []string) ([]string, error) {
	var all []string
	for _, name := range packages {
		for _, candidate := range []string{name, name + "t64", ""} {
			if candidate == "" && optionalPackages[name] {
				break
			}
			if candidate == "" {
				return nil, fmt.Errorf("the archive has no package %s", name)
			}
			version, err := a.Version(ctx, candidate)
			if err != nil {
				return nil, err
			}
			if version != "" {
				all = append(all, candidate)
				break
			}
		}
	}
	return all, nil
}

// download unpacks the newest kernel package of a suite and returns its version.
func (k Kernel) download(ctx context.Context, a *archive, dir string) (string, error) {
	var have []string
	for _, suite := range k.Suites {
		if err := a.Use(ctx, suite); err != nil {
			have = append(have, fmt.Sprintf("suite %s: %v", suite, err))
			continue
		}
		version, err := a.Version(ctx, "linux-image-amd64")
		if err != nil {
			return "", err
		}
		if !strings.HasPrefix(version, k.Name+".") {
			have = append(have, fmt.Sprintf("suite %s: linux-image-amd64 %s", suite, version))
			continue
		}
		packages, err := a.Depends(ctx, "linux-image-amd64", "linux-image-")
		if err != nil {
			return "", err
		}
		for _, image := range packages { // from 7 on, the image package is empty
			parts, err := a.Depends(ctx, image, "linux-base-", "linux-binary-", "linux-modules-")
			if err != nil {
				return "", err
			}
			packages = append(packages, parts...)
		}
		return version, a.unpack(ctx, dir, packages...)
	}
	return "", fmt.Errorf("the archive has no such kernel: %s", strings.Join(have, "; "))
}

// copyKernel copies the kernel and the modules that guests load from the unpacked package, uncompressed.
func (i *Image) copyKernel(dir string) error {
	// The kernel is in /boot, or from 7 on in the directory of its modules, which some packages have below /usr.
	kernels := glob(dir, "boot/vmlinuz-*", "lib/modules/*/vmlinuz", "usr/lib/modules/*/vmlinuz")
	if len(kernels) != 1 {
		return fmt.Errorf("the kernel's package has %d kernels instead of one", len(kernels))
	}
	if err := copyFile(kernels[0], i.kernelFile(), 0o644); err != nil {
		return err
	}
	builtin := map[string]bool{}
	for _, file := range glob(dir, "lib/modules/*/modules.builtin", "usr/lib/modules/*/modules.builtin") {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		builtin = builtins(string(text))
	}
	found, err := findModules(dir)
	if err != nil {
		return err
	}
	wanted := func(all []string) []string {
		return slices.DeleteFunc(slices.Clone(all),
			func(name string) bool { return found[name] == "" && optionalModules[name] })
	}
	plain := map[string][]byte{}
	get := func(file string) ([]byte, error) {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		plain[file], err = decompress(file, data)
		return plain[file], err
	}
	if i.Modules, err = found.loadOrder(wanted(wantedModules), builtin, get); err != nil {
		return err
	}
	if i.NVDIMM, err = found.loadOrder(wanted(nvdimmModules), builtin, get); err != nil {
		return err
	}
	i.NVDIMM = slices.DeleteFunc(i.NVDIMM, func(name string) bool { return slices.Contains(i.Modules, name) })
	for _, name := range append(slices.Clip(i.Modules), i.NVDIMM...) {
		if err := os.WriteFile(i.moduleFile(name), plain[found[name]], 0o644); err != nil {
			return err
		}
	}
	return nil
}

// glob lists files below dir that match one of patterns.
func glob(dir string, patterns ...string) (all []string) {
	for _, pattern := range patterns {
		found, _ := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern)))
		all = append(all, found...)
	}
	return all
}

func copyFile(from, to string, mode os.FileMode) error {
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, data, mode)
}

// KernelNames returns the names of the kernels that Prepare accepts.
func KernelNames() (all []string) {
	for _, k := range Kernels {
		all = append(all, k.Name)
	}
	return all
}
