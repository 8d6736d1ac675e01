// SPDX-License-Identifier: BSD-2-Clause

// Package dropin finds the drop-in libraries, which run C programs on the software device.
package dropin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// runner is the script that runs a program with the libraries.
const runner = "goverbs-run"

// Find returns the path of goverbs-run: in GOVERBS_LIBRARIES, next to this program, or in PATH. It ignores relative
// paths. The error lists these places and how to install it.
func Find() (string, error) {
	var looked []string
	try := func(dir string) (string, bool) {
		path := filepath.Join(dir, runner)
		looked = append(looked, strconv.Quote(path))
		info, err := os.Stat(path)
		return path, err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	}
	if dir := os.Getenv("GOVERBS_LIBRARIES"); dir != "" {
		if !filepath.IsAbs(dir) {
			return "", fmt.Errorf("GOVERBS_LIBRARIES: %q: not an absolute path", dir)
		}
		if path, ok := try(dir); ok {
			return path, nil
		}
	}
	if executable, err := os.Executable(); err == nil {
		if path, ok := try(filepath.Dir(executable)); ok {
			return path, nil
		}
	}
	if path, err := exec.LookPath(runner); err == nil && filepath.IsAbs(path) {
		return path, nil
	}
	return "", fmt.Errorf("%s: not found in %s or PATH; install the package goverbs-dropin, or run make dropin (needs "+
		"a C compiler) in a checkout and set GOVERBS_LIBRARIES to its bin/dropin", runner, strings.Join(looked, ", "))
}
