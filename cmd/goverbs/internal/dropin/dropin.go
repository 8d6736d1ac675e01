// SPDX-License-Identifier: BSD-2-Clause

// Package dropin finds the drop-in libraries, by which programs of C run on the software device.
package dropin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// runner is the script that runs a program on the libraries; it lies beside them, or where a package has put it.
const runner = "goverbs-run"

// Find gives the path of goverbs-run: in GOVERBS_LIBRARIES, beside this program, in PATH, or in a checkout where make
// dropin has run. The error says where it looked, and how to get it.
func Find() (string, error) {
	var looked []string
	try := func(dir string) (string, bool) {
		path := filepath.Join(dir, runner)
		looked = append(looked, path)
		info, err := os.Stat(path)
		return path, err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
	}
	if dir := os.Getenv("GOVERBS_LIBRARIES"); dir != "" {
		if path, ok := try(dir); ok {
			return path, nil
		}
	}
	if own, err := os.Executable(); err == nil {
		if path, ok := try(filepath.Dir(own)); ok {
			return path, nil
		}
	}
	if path, err := exec.LookPath(runner); err == nil {
		return path, nil
	}
	looked = append(looked, "PATH")
	if path, ok := try(filepath.Join("bin", "dropin")); ok {
		return filepath.Abs(path)
	}
	return "", fmt.Errorf("the drop-in libraries are not here (looked for %s): install the package goverbs-dropin, or "+
		"run make dropin in a checkout of goverbs, which needs a C compiler, and set GOVERBS_LIBRARIES to its "+
		"bin/dropin",
		strings.Join(looked, ", "))
}
