// SPDX-License-Identifier: BSD-2-Clause

// Package beside finds the programs that carry out what goverbs itself would be too large for.
package beside

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Find gives the path of a program: beside this one, or in PATH. The error says how to get it.
func Find(program string) (string, error) {
	if own, err := os.Executable(); err == nil {
		beside := filepath.Join(filepath.Dir(own), program)
		if info, err := os.Stat(beside); err == nil && info.Mode()&0o111 != 0 {
			return beside, nil
		}
	}
	path, err := exec.LookPath(program)
	if err != nil {
		return "", fmt.Errorf("this is done by the program %s, which is neither beside goverbs nor in PATH: "+
			"go install github.com/goverbs/goverbs/cmd/goverbs/%s@latest", program, program)
	}
	return path, nil
}
