package memstore_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pawlhost/pawl/store"
	"github.com/pawlhost/pawl/store/memstore"
	"github.com/pawlhost/pawl/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var engine = storetest.Engine{Open: func(testing.TB, string) store.Store { return memstore.New() }}

func TestStore(t *testing.T) { storetest.Run(t, engine) }
func FuzzStore(f *testing.F) { storetest.Fuzz(f, engine) }
