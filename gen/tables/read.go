package tables

import (
	"fmt"
	"io/fs"

	"github.com/goverbs/goverbs/gen/model"
)

// Read reads all tables and the rules of flags from the man pages of a release.
func Read(man fs.FS) ([]model.Table, []model.Flag, error) {
	var all []model.Table
	var flags []model.Flag
	for _, one := range []struct {
		page string
		read func(page string, text []byte) (model.Table, []model.Flag, error)
	}{
		{"ibv_post_send.3", ReadPostSend},
		{"ibv_wr_post.3", ReadWRPost},
		{"ibv_modify_qp.3", func(page string, text []byte) (model.Table, []model.Flag, error) {
			t, err := ReadModifyQP(page, text)
			return t, nil, err
		}},
	} {
		text, err := fs.ReadFile(man, one.page)
		if err != nil {
			return nil, nil, fmt.Errorf("man pages: %w", err)
		}
		t, f, err := one.read(one.page, text)
		if err != nil {
			return nil, nil, err
		}
		all, flags = append(all, t), append(flags, f...)
	}
	return all, flags, nil
}
