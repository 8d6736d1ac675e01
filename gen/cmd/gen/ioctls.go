// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/ioctl"
	"github.com/goverbs/goverbs/gen/model"
)

type ioctlsCmd struct {
	Kernel  string   `help:"Kernel, as in the name of the file: 6.1." required:"" placeholder:"6.1"`
	Modules []string `arg:"" help:"Uncompressed modules of that kernel: ib_uverbs.ko, ib_uverbs_support.ko, and drivers." type:"existingfile" placeholder:"MODULE"`
}

// Help is printed by --help.
func (c *ioctlsCmd) Help() string {
	return "Read the tables by which modules of a kernel check requests of RDMA_VERBS_IOCTL, and write " +
		"headers/ioctls/KERNEL.csv. Then run make generate."
}

// Run records the schema of a kernel.
func (c *ioctlsCmd) Run(t tree) error {
	s := &model.IoctlSchema{Kernel: c.Kernel}
	for _, path := range c.Modules {
		file, err := bounded.Read(path)
		if err != nil {
			return err
		}
		attrs, kernel, err := ioctl.Read(file)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		source := "Linux " + kernel
		if s.Source != "" && s.Source != source {
			return fmt.Errorf("%s: a module of %s; the first one is of %s", path, source, s.Source)
		}
		s.Source, s.Attrs = source, append(s.Attrs, attrs...)
	}
	slices.SortStableFunc(s.Attrs, ioctl.Compare)
	if err := s.Check(); err != nil {
		return err
	}
	if err := os.MkdirAll(t.ioctls(), 0o755); err != nil {
		return err
	}
	if err := replaceFile(filepath.Join(t.ioctls(), s.File()), s.Encode()); err != nil {
		return err
	}
	fmt.Printf("%s: %d attributes in headers/ioctls/%s\n", s.Source, len(s.Attrs), s.File())
	return nil
}
