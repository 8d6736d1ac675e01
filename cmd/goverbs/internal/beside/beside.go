// SPDX-License-Identifier: BSD-2-Clause

// Package beside finds the programs that carry out what goverbs itself would be too large for.
package beside

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Find returns the path of a program: beside this one, or in PATH, but nothing relative to the working directory. The
// error names the command that installs it.
func Find(program string) (string, error) {
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), program)
		if info, err := os.Stat(beside); err == nil && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(program)
	if err != nil || !filepath.IsAbs(path) {
		return "", fmt.Errorf("%s: not found beside goverbs or in PATH; "+
			"go install github.com/goverbs/goverbs/cmd/goverbs/%s@latest", program, program)
	}
	return path, nil
}
