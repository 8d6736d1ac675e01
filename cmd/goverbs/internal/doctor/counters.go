// SPDX-License-Identifier: BSD-2-Clause

package doctor

import (
	"io/fs"

	"github.com/goverbs/goverbs/cmd/goverbs/internal/sysfs"
)

// savedCounters is a file system with saved counters.
type savedCounters struct {
	fs.FS
	counters map[string]string
}

// saveCounters saves all counters of all ports.
func (h *Host) saveCounters() fs.FS {
	r := &savedCounters{FS: h.FS, counters: map[string]string{}}
	h.ports(func(p *sysfs.Port) {
		for _, dir := range []string{p.Dir + "/counters", p.Dir + "/hw_counters"} {
			for _, name := range h.list(dir) {
				r.counters[dir+"/"+name] = h.text(dir + "/" + name)
			}
		}
	})
	return r
}

// ReadFile returns the saved value of a counter, and the current contents of any other file.
func (r *savedCounters) ReadFile(name string) ([]byte, error) {
	if text, ok := r.counters[name]; ok {
		return []byte(text), nil
	}
	return fs.ReadFile(r.FS, name)
}

func (r *savedCounters) ReadLink(name string) (string, error)       { return fs.ReadLink(r.FS, name) }
func (r *savedCounters) Lstat(name string) (fs.FileInfo, error)     { return fs.Lstat(r.FS, name) }
func (r *savedCounters) ReadDir(name string) ([]fs.DirEntry, error) { return fs.ReadDir(r.FS, name) }
