// SPDX-License-Identifier: BSD-2-Clause

package guest

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"slices"
	"strings"
)

// Packages lists the packages that every suite requires.
var Packages = []string{"ibverbs-providers", "iproute2", "libgcc-s1", "dash", "coreutils", "python3-minimal"}

// omitted lists directories with files that no program of the suites reads.
var omitted = []string{"/usr/share/man", "/usr/share/locale", "/usr/share/doc/", "/usr/share/lintian", "/usr/share/perl",
	"/usr/lib/x86_64-linux-gnu/perl", "/usr/lib/x86_64-linux-gnu/gconv", "/usr/share/bash-completion"}

// kept is a subdirectory of these with files that are read.
const kept = "/usr/share/doc/rdma-core/tests/"

// writeRoot writes a root file system as a tar file, with the installed files of packages and of their dependencies.
func writeRoot(ctx context.Context, to io.Writer, packages []string) error {
	depend, virtual, err := depends(ctx)
	if err != nil {
		return err
	}
	wanted := map[string]bool{}
	var want func(name string)
	want = func(name string) {
		if on, installed := depend[name]; installed && !wanted[name] {
			wanted[name] = true
			for _, other := range on {
				want(other)
			}
		}
	}
	for _, name := range append(slices.Clone(Packages), packages...) {
		if _, installed := depend[name]; !installed {
			return fmt.Errorf("package %s is not installed", name)
		}
		want(name)
	}
	maps.DeleteFunc(wanted, func(name string, _ bool) bool { return virtual[name] })
	args := append([]string{"-L"}, slices.Sorted(maps.Keys(wanted))...)
	list, err := exec.CommandContext(ctx, "dpkg-query", args...).Output()
	if err != nil {
		return fmt.Errorf("dpkg-query -L: %w", err)
	}
	w := tar.NewWriter(to)
	done := map[string]bool{}
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		done["/"+dir] = true
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: dir, Linkname: "usr/" + dir})
		if err != nil {
			return err
		}
	}
	for name := range strings.Lines(string(list)) {
		name = strings.TrimSpace(name)
		if !path.IsAbs(name) || done[inUsr(name)] || slices.ContainsFunc(omitted, func(dir string) bool {
			return strings.HasPrefix(name, dir) && !strings.HasPrefix(name, kept)
		}) {
			continue
		}
		done[inUsr(name)] = true
		if err := pack(w, name); err != nil {
			return err
		}
	}
	return w.Close()
}

// inUsr returns the name of a file on a system with merged /usr.
func inUsr(name string) string {
	for _, dir := range []string{"/bin/", "/sbin/", "/lib/", "/lib64/"} {
		if strings.HasPrefix(name, dir) {
			return "/usr" + name
		}
	}
	return name
}

func pack(w *tar.Writer, name string) error {
	info, err := os.Lstat(name)
	if os.IsNotExist(err) || err == nil && info.IsDir() {
		return nil // removed by an administrator, or a directory, which is created as needed
	}
	if err != nil {
		return err
	}
	header := &tar.Header{Name: inUsr(name)[1:], Mode: int64(info.Mode().Perm()), Size: info.Size()}
	if info.Mode()&fs.ModeSymlink != 0 {
		header.Typeflag, header.Size = tar.TypeSymlink, 0
		header.Linkname, err = os.Readlink(name)
		if err != nil {
			return err
		}
		return w.WriteHeader(header)
	}
	from, err := os.Open(name)
	if err != nil {
		return err
	}
	defer from.Close()
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w, from)
	return err
}

// depends returns the dependencies of each installed package, and the names of virtual packages with the packages that
// provide them.
func depends(ctx context.Context) (all map[string][]string, virtual map[string]bool, err error) {
	out, err := exec.CommandContext(ctx, "dpkg-query", "-W", "-f",
		"${db:Status-Status}\t${Package}\t${Provides}\t${Pre-Depends},${Depends}\n").Output()
	if err != nil {
		return nil, nil, fmt.Errorf("dpkg-query: %w", err)
	}
	all, virtual = map[string][]string{}, map[string]bool{}
	provided := map[string]string{}
	for line := range strings.Lines(string(out)) {
		fields := strings.Split(strings.TrimSpace(line), "\t")
		if len(fields) < 4 || fields[0] != "installed" {
			continue
		}
		all[fields[1]] = names(fields[3])
		for _, name := range names(fields[2]) {
			provided[name] = fields[1]
		}
	}
	for name, by := range provided {
		if _, installed := all[name]; !installed {
			all[name], virtual[name] = []string{by}, true
		}
	}
	// dependencies that are needed only for installation; no program of the suites uses them
	for _, name := range []string{"debconf", "dpkg", "perl", "perl-base", "init-system-helpers", "systemd"} {
		delete(all, name)
	}
	return all, virtual, nil
}

// names returns the packages in a list like "libc6 (>= 2.34), a | b, python3:any".
func names(list string) (all []string) {
	for one := range strings.FieldsFuncSeq(list, func(r rune) bool { return r == ',' || r == '|' }) {
		name, _, _ := strings.Cut(strings.TrimSpace(one), " ")
		if name, _, _ = strings.Cut(name, ":"); name != "" {
			all = append(all, name)
		}
	}
	return all
}
