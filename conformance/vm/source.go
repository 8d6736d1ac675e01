// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// absent lists parts of the module that guest programs link but do not run: since a guest has a kernel device, it never
// runs the software device. Changes to these parts alone do not repeat guest tests; their own tests run outside guests.
// present lists the exceptions, which guests use to compare rates with C.
var absent, present = []string{"rdma/soft"}, []string{"rdma/soft/internal/rate"}

// inGuests reports whether guest programs depend on a package, given its path in the module.
func inGuests(dir string) bool {
	under := func(dirs []string) bool {
		return slices.ContainsFunc(dirs, func(r string) bool { return dir == r || strings.HasPrefix(dir, r+"/") })
	}
	return !under(absent) || under(present)
}

// source is the output of go list about the files of a package. A package that is compiled for a test has a different
// name.
type source struct {
	ImportPath, ForTest, Dir string
	Standard                 bool
	Module                   *struct {
		Path, Version string
		Main          bool
	}
	GoFiles, CgoFiles, CFiles, SFiles, HFiles, EmbedFiles, Deps []string
}

// sourceDigests returns a digest for each package that matches patterns, and for each test program "PATH.test". It
// covers all sources of the program that may run in a guest.
func sourceDigests(ctx context.Context, patterns, buildFlags []string) (map[string]string, error) {
	fields := "ImportPath,ForTest,Dir,Standard,Module,GoFiles,CgoFiles,CFiles,SFiles,HFiles,EmbedFiles,Deps"
	args := append([]string{"list", "-deps", "-test", "-json=" + fields}, buildFlags...)
	text, err := goOutput(ctx, append(args, patterns...)...)
	if err != nil {
		return nil, err
	}
	settings, err := goOutput(ctx, "env", "GOVERSION", "GOFLAGS", "GOEXPERIMENT", "GOAMD64", "CGO_ENABLED")
	if err != nil {
		return nil, err
	}
	own, all := map[string]string{}, []source{}
	for dec := json.NewDecoder(bytes.NewReader(text)); ; {
		var s source
		if err := dec.Decode(&s); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, err
		}
		if own[s.ImportPath], err = s.digest(); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	digests := map[string]string{}
	for _, s := range all {
		sum := sha256.New()
		fmt.Fprintf(sum, "%s\n%q\n%s\n", settings, buildFlags, own[s.ImportPath])
		for _, dep := range slices.Sorted(slices.Values(s.Deps)) {
			fmt.Fprintf(sum, "%s %s\n", dep, own[dep])
		}
		digests[s.ImportPath] = hex.EncodeToString(sum.Sum(nil))
	}
	return digests, nil
}

// digest returns the digest of the package alone. The Go version covers the standard library.
func (s *source) digest() (string, error) {
	switch {
	case s.Standard:
		return "", nil
	case s.Module == nil || strings.HasSuffix(s.ImportPath, ".test"): // generated from the tests
		return s.ImportPath, nil
	case !s.Module.Main:
		return s.Module.Path + "@" + s.Module.Version, nil
	}
	dir, err := filepath.Rel(moduleRoot(), s.Dir)
	if err != nil {
		return "", err
	}
	if !inGuests(filepath.ToSlash(dir)) {
		return "absent", nil
	}
	sum := sha256.New()
	for _, files := range [][]string{s.GoFiles, s.CgoFiles, s.CFiles, s.SFiles, s.HFiles, s.EmbedFiles} {
		for _, name := range files {
			text, err := os.ReadFile(filepath.Join(s.Dir, name))
			if err != nil {
				return "", err
			}
			fmt.Fprintf(sum, "%s %d\n%s", name, len(text), text)
		}
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// goOutput returns the go command's output about packages for the guest.
func goOutput(ctx context.Context, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Env = append(os.Environ(), guestTarget()...)
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	out, err := cmd.Output()
	if err != nil {
		shown := slices.DeleteFunc(args, func(a string) bool { return strings.HasPrefix(a, "-json=") })
		return nil, fmt.Errorf("go %s: %w\n%s", strings.Join(shown, " "), ended(ctx, err),
			bytes.TrimSpace(complaints.Bytes()))
	}
	return out, nil
}
