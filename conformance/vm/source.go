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

// absent is the part of the module that programs link and do not use in a guest, where they have a device of the
// kernel: the software device. When it alone changes, what has passed in a guest is not run again; the tests of the
// software device, and those of its users, run outside. Present are parts of it that guests use: they compare rates
// with those of C.
var absent, present = []string{"rdma/soft"}, []string{"rdma/soft/internal/rate"}

// inGuests says whether a program in a guest depends on a package of the module, by its path from the root.
func inGuests(room string) bool {
	under := func(rooms []string) bool {
		return slices.ContainsFunc(rooms, func(r string) bool { return room == r || strings.HasPrefix(room, r+"/") })
	}
	return !under(absent) || under(present)
}

// source is what `go list` says about where a package comes from. A package that is compiled for a test has a name of
// its own.
type source struct {
	ImportPath, ForTest, Dir string
	Standard                 bool
	Module                   *struct {
		Path, Version string
		Main          bool
	}
	GoFiles, CgoFiles, CFiles, SFiles, HFiles, EmbedFiles, Deps []string
}

// sourceDigests returns a digest for each package that patterns name, and for its tests under the name of the program,
// "PATH.test": of all that the program is built from and that it may use in a guest.
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

// digest is of the package itself. Go's own packages belong to the version of Go.
func (s *source) digest() (string, error) {
	switch {
	case s.Standard:
		return "", nil
	case s.Module == nil || strings.HasSuffix(s.ImportPath, ".test"): // its text is made from that of the tests
		return s.ImportPath, nil
	case !s.Module.Main:
		return s.Module.Path + "@" + s.Module.Version, nil
	}
	room, err := filepath.Rel(moduleRoot(), s.Dir)
	if err != nil {
		return "", err
	}
	if !inGuests(filepath.ToSlash(room)) {
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

// goOutput is what the go command writes about packages for the guest.
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
