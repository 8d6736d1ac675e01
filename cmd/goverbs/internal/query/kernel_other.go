// SPDX-License-Identifier: BSD-2-Clause

//go:build !linux

package query

func interfaceName(uint32) string { return "" }

func kernel(string) Fields { return nil }

func resources(string) Fields { return nil }
