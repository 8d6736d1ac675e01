// SPDX-License-Identifier: BSD-2-Clause

package vm

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Drivers returns the directory of the kernel's drivers of RDMA adapters, uncompressed: cache/drivers-VERSION. Guests
// load none of them, because they have no adapters; gen ioctls reads their tables. It downloads the kernel's packages
// once, 70 MB of which 9 MB are kept.
func (i *Image) Drivers(ctx context.Context, cacheDir string, log Logf) (string, error) {
	dir := filepath.Join(cacheDir, "drivers-"+i.Version)
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return dir, err
	}
	release, err := i.release()
	if err != nil {
		return "", err
	}
	k, err := find(i.Kernel)
	if err != nil {
		return "", err
	}
	work, err := os.MkdirTemp(cacheDir, "making-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(work)
	a, err := openArchive(ctx, filepath.Join(work, "apt"), log, k.Suites...)
	if err != nil {
		return "", err
	}
	root, driversDir := filepath.Join(work, "root"), filepath.Join(work, "drivers")
	if err := os.Mkdir(driversDir, 0o755); err != nil {
		return "", err
	}
	if err := i.unpackKernel(ctx, a, k, release, root); err != nil {
		return "", err
	}
	if err := copyDrivers(root, driversDir); err != nil {
		return "", err
	}
	return dir, os.Rename(driversDir, dir)
}

// unpackKernel unpacks the packages with the kernel's modules, in the image's version.
func (i *Image) unpackKernel(ctx context.Context, a *archive, k Kernel, release, root string) error {
	var errs []error
	for _, suite := range k.Suites {
		if err := a.Use(ctx, suite); err != nil {
			errs = append(errs, fmt.Errorf("suite %s: %w", suite, err))
			continue
		}
		image := "linux-image-" + release
		packages, err := a.Depends(ctx, image, "linux-modules-") // from 7 on, the image package is empty
		if err != nil {
			errs = append(errs, fmt.Errorf("suite %s: %w", suite, err))
			continue
		}
		packages = append(packages, image)
		a.log.printf("downloading %s %s", strings.Join(packages, " "), i.Version)
		for _, pkg := range packages {
			if err := a.UnpackVersion(ctx, root, pkg, i.Version); err != nil {
				return err
			}
		}
		return nil
	}
	return errors.Join(errs...)
}

// copyDrivers copies the modules in drivers/infiniband/hw from an unpacked package, uncompressed.
func copyDrivers(root, to string) error {
	found, err := findModules(root)
	if err != nil {
		return err
	}
	for name, file := range found {
		if !strings.Contains(filepath.ToSlash(file), "/drivers/infiniband/hw/") {
			continue
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		if data, err = decompress(file, data); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, name+".ko"), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}
