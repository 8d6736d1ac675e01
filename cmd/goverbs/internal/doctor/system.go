// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
	"github.com/goverbs/goverbs/internal/defects"
)

// adapter maps a PCI device to its driver and to the module that creates RDMA devices.
type adapter struct{ vendor, device, driver, rdma string }

// adapters lists known adapters by vendor and, for vendors with other devices, by a prefix of the device ID.
var adapters = []adapter{
	{"0x15b3", "0x10", "mlx5_core", "mlx5_ib"}, {"0x15b3", "0xa2", "mlx5_core", "mlx5_ib"},
	{"0x1d0f", "0xefa", "efa", "efa"},
}

func (h *Host) checkDevices() (all []Finding) {
	if len(h.all()) > 0 || h.Software(cmp.Or(h.Chosen, h.Env("GOVERBS_DEVICE"))) {
		return nil
	}
	for _, slot := range h.list(vendorsDir) {
		dir := vendorsDir + "/" + slot
		vendor, id := h.text(dir+"/vendor"), h.text(dir+"/device")
		for _, a := range adapters {
			if vendor != a.vendor || !strings.HasPrefix(id, a.device) {
				continue
			}
			switch driver := h.target(dir + "/driver"); {
			case driver == "":
				return append(all, found("devices.driver", slot, vendor+" "+id, a.driver))
			case !h.module(a.rdma):
				return append(all, found("devices.rdma", slot, "driver "+driver, a.rdma))
			}
		}
	}
	if h.text("sys/module/ib_core/parameters/netns_mode") == "N" {
		return append(all, found("devices.elsewhere", "this namespace", ""))
	}
	return append(all, found("devices.none", "this host", ""))
}

func (h *Host) checkModules() (all []Finding) {
	if !h.module("ib_uverbs") {
		all = append(all, found("modules.uverbs", "the kernel", "ib_uverbs is not loaded"))
	}
	if !h.module("rdma_ucm") && slices.ContainsFunc(h.all(), managed) {
		all = append(all, found("modules.ucm", "the kernel", "rdma_ucm is not loaded"))
	}
	return all
}

// managed reports whether a device supports the connection manager. EFA does not.
func managed(d *sysfs.Device) bool { return d.Provider != "efa" }

const nodesDir = "dev/infiniband"

func (h *Host) checkNodes() (all []Finding) {
	const verbs = "sys/class/infiniband_verbs"
	if h.module("ib_uverbs") {
		for _, name := range h.list(verbs) {
			if of := h.text(verbs + "/" + name + "/ibdev"); of != "" {
				all = append(all, h.node(of, name)...)
			}
		}
	}
	if h.module("rdma_ucm") && slices.ContainsFunc(h.all(), managed) {
		all = append(all, h.node("the connection manager", "rdma_cm")...)
	}
	return all
}

// node checks a node of /dev/infiniband.
func (h *Host) node(where, name string) []Finding {
	file := "/" + nodesDir + "/" + name
	switch err := h.Open(nodesDir + "/" + name); {
	case errors.Is(err, fs.ErrNotExist):
		return []Finding{found("nodes.missing", where, file, file)}
	case errors.Is(err, syscall.EACCES):
		return []Finding{found("nodes.permission", where, file, file)}
	case errors.Is(err, syscall.EPERM):
		return []Finding{found("nodes.cgroup", where, file, file)}
	}
	return nil
}

// libraryDirs are the directories that the loader searches.
var libraryDirs = []string{"usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu",
	"lib/aarch64-linux-gnu", "usr/lib64", "lib64", "usr/lib", "lib", "usr/local/lib"}

// library returns the file of a library and the rdma-core release that its name ends with, or "": 44.0 for
// libibverbs.so.1.14.44.0.
func (h *Host) library(name string) (file, release string) {
	dirs := libraryDirs
	for dir := range strings.SplitSeq(h.Env("LD_LIBRARY_PATH"), ":") {
		if dir = strings.TrimPrefix(dir, "/"); dir != "" {
			dirs = append([]string{dir}, dirs...)
		}
	}
	for _, dir := range dirs {
		file := dir + "/" + name
		if !h.has(file) {
			continue
		}
		parts := strings.Split(strings.TrimPrefix(h.target(file), name), ".")
		if len(parts) == 4 { // empty, minor, and the two numbers of the release
			release = parts[2] + "." + parts[3]
		}
		return file, release
	}
	return "", ""
}

func (h *Host) checkLibraries() (all []Finding) {
	if h.Library == "native" {
		seen := map[string]bool{}
		for _, d := range h.all() {
			if !seen[d.Provider] && h.NeedsLibrary(d.Name) {
				all = append(all, found("libraries.native", d.Name, d.Provider))
			}
			seen[d.Provider] = true
		}
		return all
	}
	file, release := h.library("libibverbs.so.1")
	if file == "" {
		return append(all, found("libraries.verbs", "this host", ""))
	}
	if len(h.all()) == 0 {
		return nil
	}
	cm, other := h.library("librdmacm.so.1")
	switch {
	case cm == "":
		all = append(all, found("libraries.cm", "this host", ""))
	case release != "" && other != "" && major(release) != major(other):
		finding := fmt.Sprintf("libibverbs %s, librdmacm %s", release, other)
		all = append(all, found("libraries.skew", cm, finding, "goverbs itself works with both"))
	}
	seen := map[string]bool{}
	for _, d := range h.all() {
		if d.Provider == "" || seen[d.Provider] {
			continue
		}
		seen[d.Provider] = true
		all = append(all, h.provider(file, d)...)
	}
	if len(all) == 0 && release != "" {
		seen["libibverbs"], seen["librdmacm"] = true, slices.ContainsFunc(h.all(), managed)
		all = append(all, knownDefects(file, release, seen)...)
	}
	if abi := h.text("sys/class/infiniband_verbs/abi_version"); abi != "" && abi != "6" {
		all = append(all, found("libraries.abi", file, "version "+abi, abi))
	}
	return all
}

func major(release string) string {
	first, _, _ := strings.Cut(release, ".")
	return first
}

// knownDefects returns the defects in this release of the libraries that a newer release fixes.
func knownDefects(file, release string, libraries map[string]bool) []Finding {
	var lines []string
	newest := 0
	for _, library := range slices.Sorted(maps.Keys(libraries)) {
		var names []string
		for _, d := range defects.All() {
			if d.Library == library && libraries[library] && len(d.Fixed) > 0 && d.In(release) {
				names = append(names, d.Name)
				n, _ := strconv.Atoi(major(d.Fixed[0]))
				newest = max(newest, n)
			}
		}
		if len(names) > 0 {
			lines = append(lines, library+": "+strings.Join(names, ", "))
		}
	}
	if len(lines) == 0 {
		return nil
	}
	return []Finding{found("libraries.defects", "/"+file, release+", "+strings.Join(lines, "; "),
		strconv.Itoa(newest)+".0")}
}

// provider checks the provider library of a device, such as libmlx5-rdmav34.so. The suffix is a string in libibverbs.
func (h *Host) provider(verbs string, d *sysfs.Device) []Finding {
	b, _ := fs.ReadFile(h.FS, verbs)
	suffix := "-rdmav34.so"
	if _, after, ok := strings.Cut(string(b), "lib%s-rdmav"); ok {
		suffix = "-rdmav" + after[:min(2, len(after))] + ".so"
	}
	dir := path.Dir(verbs) + "/libibverbs"
	name := "lib" + d.Provider + suffix
	if !h.has(dir + "/" + name) {
		for _, other := range h.list(dir) {
			if strings.HasPrefix(other, "lib"+d.Provider+"-rdmav") {
				finding := fmt.Sprintf("found /%s/%s, libibverbs needs %s", dir, other, name)
				return []Finding{found("libraries.skew", d.Name, finding,
					"A provider library works with one release only")}
			}
		}
		return []Finding{found("libraries.provider", d.Name, "/"+dir+"/"+name, name)}
	}
	const config = "etc/libibverbs.d"
	for _, file := range h.list(config) {
		if slices.Contains(strings.Fields(h.text(config+"/"+file)), d.Provider) {
			return nil
		}
	}
	return []Finding{found("libraries.config", d.Name, "/"+config+"/"+d.Provider+".driver", d.Provider+
		" > /"+config+"/"+d.Provider+".driver")}
}

func (h *Host) checkEnvironment() []Finding {
	name := h.Env("GOVERBS_DEVICE")
	if len(h.all()) == 0 && !strings.HasPrefix(name, "soft") {
		return nil // checkDevices reports it
	}
	if name == "" || h.HasDevice(name) {
		return nil
	}
	return []Finding{found("env.device", "the environment", fmt.Sprintf("%q", name))}
}
