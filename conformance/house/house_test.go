// SPDX-License-Identifier: BSD-2-Clause

// Package house tests the rules of ARCHITECTURE.md for the packages of this module: allowed imports and the targets on
// which each package compiles.
package house

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/goverbs/goverbs/gen/rules"
)

const module = "github.com/goverbs/goverbs"

type listed struct {
	ImportPath string
	Standard   bool
	Imports    []string
	Deps       []string
}

func list(t *testing.T, patterns ...string) []listed {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-json=ImportPath,Standard,Imports,Deps"}, patterns...)...)
	cmd.Dir, cmd.Env = "../..", append(os.Environ(), "GOOS=linux") // elsewhere, packages import less
	out, err := cmd.Output()
	require.NoError(t, err)
	var all []listed
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var one listed
		if err := dec.Decode(&one); err == io.EOF {
			return all
		} else {
			require.NoError(t, err)
		}
		all = append(all, one)
	}
}

// folderOf returns the part of an import path after the module path, "gen/parse", and false for other modules.
func folderOf(path string) (string, bool) {
	rest, ok := strings.CutPrefix(path, module+"/")
	return rest, ok
}

func under(path string, folders ...string) bool {
	return slices.ContainsFunc(folders, func(f string) bool { return path == f || strings.HasPrefix(path, f+"/") })
}

// nouns are the packages of types and tables according to gen/rules.
var nouns = func() (all []string) {
	for _, p := range rules.Packages {
		all = append(all, "generated/"+p.Name)
	}
	return all
}()

// foreign are the packages with the layouts of other systems than Linux, by system.
var foreign = func() map[string][]string {
	all := map[string][]string{}
	for _, p := range rules.Foreign {
		all[p.GOOS()] = append(all[p.GOOS()], "generated/"+p.Name)
	}
	return all
}()

// verbs are the packages of functions.
var verbs = func() (all []string) {
	for _, p := range rules.Calling() {
		all = append(all, "generated/"+p.Verbs.Name)
	}
	return all
}()

// vendors are the packages for devices of only one vendor.
var vendors = func() (all []string) {
	for _, p := range rules.Calling() {
		if p.Name != "ibv" && p.Name != "rdmacm" {
			all = append(all, "generated/"+p.Name, "generated/"+p.Verbs.Name)
		}
	}
	return all
}()
