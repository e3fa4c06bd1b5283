package badgerstore_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/badgerstore"
	"github.com/pawlhost/pawl/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var engine = storetest.Engine{
	Durable: true,
	Open: func(tb testing.TB, dir string) store.Store {
		tb.Helper()
		s, err := badgerstore.Open(dir, badgerstore.Options{})
		if err != nil {
			tb.Fatal(err)
		}
		return s
	},
}

func TestStore(t *testing.T) { storetest.Run(t, engine) }
func FuzzStore(f *testing.F) { storetest.Fuzz(f, engine) }
