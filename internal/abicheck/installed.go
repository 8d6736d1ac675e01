// SPDX-License-Identifier: BSD-2-Clause

package abicheck

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/goverbs/goverbs/gen/bounded"
	"github.com/goverbs/goverbs/gen/model"
	"github.com/goverbs/goverbs/gen/parse"
	"github.com/goverbs/goverbs/gen/project"
	"github.com/goverbs/goverbs/gen/rules"
)

// ErrNoHeaders is the error where a machine does not have the headers of a project.
var ErrNoHeaders = errors.New("no headers")

// FindHeaders finds the include directory that a C compiler takes the headers of a project from.
func FindHeaders(ctx context.Context, cc Compiler, of *project.Project) (string, error) {
	dirs, err := cc.defaultInclude(ctx)
	if err != nil {
		return "", err
	}
	for _, dir := range dirs {
		if hasHeaders(dir, of) == nil {
			return dir, nil
		}
	}
	return "", fmt.Errorf("%w of %s: %s is in none of the directories that %s looks in (%s); install %s, or name the "+
		"include directory with -I", ErrNoHeaders, of.Name, of.Mark, cc, strings.Join(dirs, ", "), development(of.Mark))
}

// hasHeaders reports as an error that a directory does not have the headers of a project.
func hasHeaders(includeDir string, of *project.Project) error {
	if _, err := os.Stat(filepath.Join(includeDir, of.Mark)); err != nil {
		return fmt.Errorf("%w of %s in %s: %w; name the directory that holds %s with -I", ErrNoHeaders, of.Name,
			includeDir, err, of.Mark)
	}
	return nil
}

// ReadHeaders reads installed headers for one target, those of some packages of one project. No C compiler has a part
// in it.
func ReadHeaders(includeDir, target string, packages []rules.Package) (*model.Release, error) {
	return parse.Read(parse.Source{
		Release: "installed", Include: bounded.Dir(includeDir), Name: includeDir, Headers: headersOf(packages),
		Targets: []string{target},
	})
}

// StatedRelease is the release of a project that the pkg-config files beside an include directory name, or "" where
// there are none or they do not agree.
func StatedRelease(includeDir string, of *project.Project) string {
	prefix := filepath.Dir(filepath.Clean(includeDir))
	stated := ""
	for _, pattern := range []string{"lib/pkgconfig", "lib64/pkgconfig", "lib/*/pkgconfig", "share/pkgconfig"} {
		files, _ := filepath.Glob(filepath.Join(prefix, pattern, of.PkgConfig+".pc")) // the patterns are well formed
		for _, name := range files {
			text, err := bounded.Read(name)
			if err != nil {
				continue
			}
			m := of.Version.FindSubmatch(text)
			if m == nil || (stated != "" && stated != string(m[1])) {
				return ""
			}
			stated = string(m[1])
		}
	}
	return stated
}
