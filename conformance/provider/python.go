// SPDX-License-Identifier: BSD-2-Clause

package provider

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/goverbs/goverbs/gen/fetch"
)

// Independent programs of the same release validate the emulated adapter: pyverbs with its tests, and ibverbs-utils.
// pyverbs runs in the Python of the suite.

// pythonPackages returns the packages of the suite's Python: the interpreter and its standard modules.
func pythonPackages(ctx context.Context, archive *fetch.Packages) ([]string, error) {
	python, err := archive.Depends(ctx, "python3", "python3.")
	if err != nil || len(python) != 1 {
		return nil, errors.Join(err, errors.New("the archive has no unique Python version"))
	}
	return []string{python[0] + "-minimal", "lib" + python[0], "lib" + python[0] + "-minimal",
		"lib" + python[0] + "-stdlib"}, nil
}

// Python returns the interpreter and its environment.
func (l *Libraries) Python() (program string, env []string, err error) {
	usr := filepath.Join(l.Root, "usr")
	all, err := filepath.Glob(filepath.Join(usr, "bin", "python3.*[0-9]"))
	if err != nil || len(all) != 1 {
		return "", nil, errors.Join(err, errors.New("no Python is unpacked in "+usr))
	}
	return all[0], []string{"PYTHONHOME=" + usr, "PYTHONPATH=" + filepath.Join(usr, "lib", "python3", "dist-packages"),
		"PYTHONDONTWRITEBYTECODE=1"}, nil
}

// PyverbsTests returns the directory of pyverbs' tests, some of which are compressed.
func (l *Libraries) PyverbsTests() string {
	return filepath.Join(l.Root, "usr", "share", "doc", "rdma-core", "tests")
}
