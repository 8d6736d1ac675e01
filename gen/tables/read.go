// SPDX-License-Identifier: BSD-2-Clause

package tables

import (
	"fmt"
	"io/fs"
	"slices"

	"github.com/goverbs/goverbs/gen/model"
)

// Read parses all tables, and the rules of the send flags, from the man pages of a release. For a page in [Markdown],
// it prefers the Markdown file, because the built page next to it may be from another release.
func Read(man fs.FS) (all []model.Table, flags []model.Flag, err error) {
	for _, one := range []struct {
		page string
		read func(page string, text []byte) error
	}{
		{"ibv_post_send.3", func(page string, text []byte) error {
			t, f, err := ReadPostSend(page, text)
			all, flags = append(all, t), f
			return err
		}},
		{"ibv_wr_post.3", func(page string, text []byte) error {
			builders, flags, err := ReadWRPost(page, text)
			all = append(all, builders, flags)
			return err
		}},
		{"ibv_modify_qp.3", func(page string, text []byte) error {
			t, err := ReadModifyQP(page, text)
			all = append(all, t)
			return err
		}},
	} {
		if slices.Contains(Markdown, one.page) {
			if _, err := fs.Stat(man, one.page+markdownSuffix); err == nil {
				one.page += markdownSuffix
			}
		}
		text, err := fs.ReadFile(man, one.page)
		if err != nil {
			return nil, nil, fmt.Errorf("man pages: %w", err)
		}
		if err := one.read(one.page, text); err != nil {
			return nil, nil, err
		}
	}
	return all, flags, nil
}
