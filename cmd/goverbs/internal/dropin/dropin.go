// SPDX-License-Identifier: BSD-2-Clause

// Package dropin finds the drop-in libraries, by which programs of C run on the software device.
package dropin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// runner is the script that runs a program on the libraries; it lies beside them, or where a package has put it.
const runner = "goverbs-run"

// Find returns the path of goverbs-run: in GOVERBS_LIBRARIES, beside this program, or in PATH. It finds nothing by a
// path that is relative to the working directory. The error names the places, and how to get it.
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
	if own, err := os.Executable(); err == nil {
		if path, ok := try(filepath.Dir(own)); ok {
			return path, nil
		}
	}
	if path, err := exec.LookPath(runner); err == nil && filepath.IsAbs(path) {
		return path, nil
	}
	return "", fmt.Errorf("%s: not found (looked for %s, and in PATH); install the package goverbs-dropin, or run "+
		"make dropin in a checkout of goverbs, which needs a C compiler, and set GOVERBS_LIBRARIES to the absolute path of "+
		"its bin/dropin", runner, strings.Join(looked, ", "))
}
