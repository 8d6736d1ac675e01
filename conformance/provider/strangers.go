// SPDX-License-Identifier: BSD-2-Clause

package provider

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/goverbs/goverbs/gen/fetch"
)

// Strangers judge the emulated adapter: pyverbs with its tests, and ibverbs-utils, of the same release as the
// libraries. pyverbs runs in the Python of its suite.

// pythonPackages are those of the suite's Python: what its interpreter and its own modules need.
func pythonPackages(ctx context.Context, archive *fetch.Packages) ([]string, error) {
	python, err := archive.Depends(ctx, "python3", "python3.")
	if err != nil || len(python) != 1 {
		return nil, errors.Join(err, errors.New("the archive does not say which Python it has"))
	}
	return []string{python[0] + "-minimal", "lib" + python[0], "lib" + python[0] + "-minimal",
		"lib" + python[0] + "-stdlib"}, nil
}

// Python is the interpreter, and what its environment has to say.
func (l *Libraries) Python() (program string, env []string, err error) {
	usr := filepath.Join(l.Root, "usr")
	all, err := filepath.Glob(filepath.Join(usr, "bin", "python3.*[0-9]"))
	if err != nil || len(all) != 1 {
		return "", nil, errors.Join(err, errors.New("no Python is unpacked in "+usr))
	}
	return all[0], []string{"PYTHONHOME=" + usr, "PYTHONPATH=" + filepath.Join(usr, "lib", "python3", "dist-packages"),
		"PYTHONDONTWRITEBYTECODE=1"}, nil
}

// PyverbsTests is the directory of pyverbs' tests, partly compressed.
func (l *Libraries) PyverbsTests() string {
	return filepath.Join(l.Root, "usr", "share", "doc", "rdma-core", "tests")
}
