// SPDX-License-Identifier: BSD-2-Clause

package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goverbs/goverbs/gen/fetch"
	"github.com/goverbs/goverbs/gen/generate"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/record"
)

type recordCmd struct {
	Release []string `help:"Only these releases (default: all in headers/cache)." placeholder:"NAME"`
}

func (c *recordCmd) Run(t tree) error {
	lock, err := t.lock()
	if err != nil {
		return err
	}
	recorded := 0
	for _, rel := range lock.Releases {
		if len(c.Release) > 0 && !named(rel, c.Release) {
			continue
		}
		err := fetch.Verify(t.cache(), rel)
		if errors.Is(err, fetch.ErrNotCached) && len(c.Release) == 0 {
			fmt.Printf("%s: not in headers/cache, model not changed; make headers downloads it\n", rel)
			continue
		}
		kept, err := symbolsKept(err)
		if err != nil {
			return err
		}
		m, err := t.record(t.cache(), lock, rel)
		if err != nil {
			return err
		}
		text, err := m.Encode()
		if err != nil {
			return err
		}
		path := filepath.Join(t.models(), rel.File()+".json")
		if err := replaceFile(path, text); err != nil {
			return err
		}
		fmt.Printf("%s: recorded in headers/models/%s.json\n", rel, rel.File())
		if len(kept) > 0 {
			fmt.Printf("%s: headers/cache lacks %s: keeping the recorded symbols\n", rel,
				strings.Join(kept, " "))
		}
		recorded++
	}
	if recorded == 0 {
		return errors.New("no release recorded; make headers downloads the pinned ones")
	}
	return nil
}

// symbolsKept returns the libraries that an error of fetch.Verify reports as missing, whose recorded symbols are kept.
// It returns any other error.
func symbolsKept(err error) ([]string, error) {
	lacking := (*fetch.IncompleteError)(nil)
	if errors.As(err, &lacking) && len(lacking.Pages) == 0 {
		return lacking.Libraries, nil
	}
	return nil, err
}

// record records a pinned release from a cache. For missing libraries, it keeps the recorded symbols.
func (t tree) record(cache string, lock *fetch.Lock, rel *fetch.Release) (*model.Release, error) {
	before, _ := generate.ReadModel(filepath.Join(t.models(), rel.File()+".json")) // nil if there is no readable model
	return record.FromCache(cache, t.cache(), lock, rel, before)
}

// replaceFile replaces a file atomically.
func replaceFile(path string, text []byte) error {
	aside := path + ".new"
	if err := os.WriteFile(aside, text, 0o644); err != nil {
		return errors.Join(err, os.Remove(aside))
	}
	return os.Rename(aside, path)
}

type generateCmd struct {
	Check bool `help:"Write nothing; fail if generated/ is out of date."`
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
			err = fmt.Errorf("generated/ is out of date; run make generate: %v", names)
		}
		return err
	}
	changed, err := generate.Write(dir, res.Files)
	if err != nil {
		return err
	}
	if changed {
		fmt.Printf("generated/: wrote %d files from %s\n", len(res.Files), sourcesOf(res))
	} else {
		fmt.Printf("generated/: %d files, up to date with %s\n", len(res.Files), sourcesOf(res))
	}
	return nil
}

// sourcesOf names the releases from which generated/ is generated.
func sourcesOf(res *generate.Result) string {
	var all []string
	for _, r := range res.Primary {
		all = append(all, r.String())
	}
	return strings.Join(all, " and ")
}
