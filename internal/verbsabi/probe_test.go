// SPDX-License-Identifier: BSD-2-Clause

package verbsabi

import "github.com/goverbs/goverbs/gen/model"

// probe returns the model of testdata/include/infiniband/probe.h. It is written by hand, to test the witness without
// gen/parse.
func probe() *model.Release {
	fixed := model.Same
	field := func(name, t string, offset, size int64) model.Field {
		return model.Field{Name: name, Type: t, Offset: fixed(offset), Size: fixed(size)}
	}
	slot := func(name string, offset, size int64, p model.Proto, dims ...int64) model.Field {
		return model.Field{Name: name, Func: &p, Dims: dims, Offset: fixed(offset), Size: fixed(size)}
	}
	in := func(name string, offset, size, align int64, kind model.RecordKind, fields ...model.Field) model.Field {
		rec := &model.Record{Kind: kind, Size: fixed(size), Align: fixed(align), Fields: fields}
		return model.Field{Name: name, Record: rec, Offset: fixed(offset), Size: fixed(size)}
	}
	pair := in("pair", 32, 16, 4, model.Struct, field("a", "uint8_t", 0, 1), field("b", "uint32_t", 4, 4))
	pair.Dims, pair.Record.Size = []int64{2}, fixed(8)
	bits := func(name, t string, first, width int64) model.Field {
		f := field(name, t, first/8, (first+width+7)/8-first/8)
		f.Bits = &model.Bits{First: fixed(first), Width: width}
		return f
	}
	inner := in("in", 4, 4, 2, model.Struct, bits("inner", "uint16_t", 0, 12))
	inner.Dims, inner.Record.Size = []int64{2}, fixed(2)
	lock := field("lock", "pthread_mutex_t", 64, 40)
	lock.Size.Set("arm64", 48)
	nestedSize, mutex := fixed(104), fixed(40)
	nestedSize.Set("arm64", 112)
	mutex.Set("arm64", 48)
	constant := func(name, t string, v model.Int) model.Macro {
		return model.Macro{Name: name, Kind: model.Constant, Type: t, Value: &v}
	}
	handle := model.Param{Name: "handle", Type: "struct probe_handle *"}
	return &model.Release{
		Name:    "0.1",
		Targets: []string{"amd64", "arm64", "ppc64le", "riscv64", "s390x"},
		Headers: []model.Header{{
			Name: "infiniband/probe.h",
			Records: []model.Record{
				{Kind: model.Struct, Tag: "probe_plain", Size: fixed(88), Align: fixed(8), Fields: []model.Field{
					field("id", "uint64_t", 0, 8), field("name", "const char *", 8, 8),
					field("text", "char[64]", 16, 64),
					field("sign", "enum probe_sign", 80, 4),
				}},
				{Kind: model.Struct, Tag: "probe_nested", Size: nestedSize, Align: fixed(8), Fields: []model.Field{
					field("next", "struct probe_nested *", 0, 8),
					in("", 8, 4, 4, model.Union, field("imm_data", "uint32_t", 0, 4), field("key", "uint16_t", 0, 2)),
					in("wr", 16, 16, 8, model.Union,
						in("rdma", 0, 16, 8, model.Struct, field("remote_addr", "uint64_t", 0, 8),
							field("rkey", "uint32_t", 8, 4)),
						in("plain", 0, 8, 8, model.Struct, field("plain", "struct probe_plain *", 0, 8))),
					pair, field("at", "struct timespec", 48, 16), lock,
				}},
				{Kind: model.Union, Tag: "probe_gid", Size: fixed(16), Align: fixed(8), Fields: []model.Field{
					field("raw", "uint8_t[16]", 0, 16),
					in("global", 0, 16, 8, model.Struct, field("prefix", "uint64_t", 0, 8),
						field("interface", "uint64_t", 8, 8)),
				}},
				{Kind: model.Struct, Tag: "probe_packed", Packed: true, Size: fixed(3), Align: fixed(1),
					Fields: []model.Field{
						field("first", "uint8_t", 0, 1), field("second", "uint16_t", 1, 2),
					}},
				{Kind: model.Struct, Tag: "probe_flexible", Size: fixed(4), Align: fixed(4), Fields: []model.Field{
					field("count", "uint32_t", 0, 4), field("items", "uint32_t[]", 4, 0),
				}},
				{Kind: model.Struct, Tag: "probe_ops", Size: fixed(32), Align: fixed(8), Fields: []model.Field{
					slot("start", 0, 8, model.Proto{Result: "int",
						Params: []model.Param{handle, {Type: "const struct probe_plain *"}}}),
					slot("reserved", 8, 16, model.Proto{Result: "void *"}, 2),
					slot("walk", 24, 8, model.Proto{Result: "void", Variadic: true, Params: []model.Param{
						{Func: &model.Proto{Result: "int", Params: []model.Param{{Type: "void *"}}}},
					}}),
				}},
				{Kind: model.Incomplete, Tag: "probe_handle"},
				{Kind: model.Struct, Tag: "probe_bits", Size: fixed(8), Align: fixed(4), Fields: []model.Field{
					field("first", "uint8_t", 0, 1), bits("low", "uint32_t", 8, 3), bits("across", "int32_t", 11, 7),
					inner,
				}},
			},
			Enums: []model.Enum{
				{Tag: "probe_sign", Size: 4, Signed: true, Enumerators: []model.Enumerator{
					{Name: "PROBE_UNKNOWN", Value: "-1"}, {Name: "PROBE_KNOWN", Value: "1"},
					{Name: "PROBE_AGAIN", Value: "1"},
				}},
				{Tag: "probe_flags", Size: 4, Enumerators: []model.Enumerator{
					{Name: "PROBE_LOW", Value: "1", Shift: true}, {Name: "PROBE_HIGH", Value: "2147483648"},
				}},
				{Size: 4, Enumerators: []model.Enumerator{{Name: "PROBE_NAME_MAX", Value: "64"}}},
			},
			Macros: []model.Macro{
				{Name: "probe_alias", Kind: model.Alias, Target: "probe_plain"},
				{Name: "PROBE_ALIAS", Kind: model.Alias, Target: "PROBE_HIGH"},
				constant("PROBE_POINTER", "void *", "-1"),
				constant("PROBE_WIDE", "unsigned long long", "17179869184"),
				constant("PROBE_MINUS", "int", "-1"),
				{Name: "probe_call", Kind: model.FuncLike, Params: []string{"handle"}},
				{Name: "probe_other_name", Kind: model.Alias, Target: "probe_call_inline"},
			},
			Funcs: []model.Func{
				{Name: "probe_name", Proto: model.Proto{Result: "const char *",
					Params: []model.Param{{Type: "enum probe_flags"}}}},
				{Name: "probe_call", Proto: model.Proto{Result: "int", Params: []model.Param{handle}}},
				{Name: "probe_print", Proto: model.Proto{Result: "int", Variadic: true,
					Params: []model.Param{{Type: "const char *"}}}},
				{Name: "probe_call_inline", Proto: model.Proto{Result: "int", Params: []model.Param{handle}},
					Inline: &model.Inline{Kind: model.Compute}},
			},
		}, {
			Name: "time.h", Support: true,
			Records: []model.Record{{Kind: model.Struct, Tag: "timespec", Size: fixed(16), Align: fixed(8),
				Fields: []model.Field{
					field("tv_sec", "time_t", 0, 8), field("tv_nsec", "long", 8, 8),
				}}},
		}, {
			Name: "pthread.h", Support: true,
			Records: []model.Record{{Kind: model.Opaque, Tag: "pthread_mutex_t", Size: mutex, Align: fixed(8)}},
		}},
	}
}
