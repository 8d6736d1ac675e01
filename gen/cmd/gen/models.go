// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/record"
)

type recordCmd struct {
	Release []string `help:"Only these releases; otherwise all that are in headers/cache." placeholder:"NAME"`
}

func (c *recordCmd) Run(t tree) error {
	lock, err := t.lock()
	if err != nil {
		return err
	}
	recorded := 0
	for _, rel := range lock.Releases {
		if len(c.Release) > 0 && !contains(c.Release, rel.Name) {
			continue
		}
		err := fetch.Verify(t.cache(), rel)
		if errors.Is(err, fetch.ErrNotCached) && len(c.Release) == 0 {
			fmt.Printf("rdma-core %s: not in headers/cache, its model stays as it is; make headers brings it\n",
				rel.Name)
			continue
		}
		if err != nil {
			return err
		}
		m, err := record.FromCache(t.cache(), rel)
		if err != nil {
			return err
		}
		text, err := m.Encode()
		if err != nil {
			return err
		}
		path := filepath.Join(t.models(), rel.Name+".json")
		if err := replaceFile(path, text); err != nil {
			return err
		}
		fmt.Printf("rdma-core %s: recorded in headers/models/%s.json\n", rel.Name, rel.Name)
		recorded++
	}
	if recorded == 0 {
		return errors.New("no release was recorded; make headers brings the pinned ones")
	}
	return nil
}

// replaceFile writes a file whole or not at all.
func replaceFile(path string, text []byte) error {
	aside := path + ".new"
	if err := os.WriteFile(aside, text, 0o644); err != nil {
		return errors.Join(err, os.Remove(aside))
	}
	return os.Rename(aside, path)
}

type generateCmd struct {
	Check bool `help:"Write nothing; fail when generated/ is not what the models give."`
}

func (c *generateCmd) Run(t tree) error {
	res, err := t.result()
	if err != nil {
		return err
	}
	dir := t.at("generated")
	if c.Check {
		names, err := generate.Differs(dir, res.Files)
		if err == nil && len(names) > 0 {
			err = fmt.Errorf("generated/ is not what the models give; run make generate: %v", names)
		}
		return err
	}
	changed, err := generate.Write(dir, res.Files)
	if err != nil {
		return err
	}
	if changed {
		fmt.Printf("generated/: written, %d files from rdma-core %s\n", len(res.Files), res.Primary.Name)
	} else {
		fmt.Printf("generated/: %d files are what rdma-core %s gives\n", len(res.Files), res.Primary.Name)
	}
	return nil
}
