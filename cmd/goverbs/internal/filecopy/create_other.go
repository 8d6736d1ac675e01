// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package filecopy

import "os"

// create opens a new file in a directory.
func create(dir string) (*destination, error) {
	f, err := os.CreateTemp(dir, temporary)
	if err != nil {
		return nil, err
	}
	return &destination{file: f, aside: f.Name()}, nil
}

// link gives the file its final name, which must not exist.
func (d *destination) link(name string) error { return os.Link(d.aside, name) }
