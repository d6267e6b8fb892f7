// Spark's own Parquet reader, without some conditions by which it would skip row groups that have rows. Spark tests all
// conditions again, row by row. Compiled by Janino, as `NativeRule.java` is.
// - Those on floating columns. To Spark NaN is the greatest number, and most writers leave it out of the bounds in a
//   footer: `x > 9.5` would lose rows. Our writers put no such bounds there, but a file may have come from elsewhere.
// - Those with old dates and times. Spark hands them over in Java's old calendar, which has no 1582-10-05 to -14 and
//   other clocks before 1900: `day > 1582-10-10` would begin at 1582-10-20. A day that the driver's zone has left out
//   (Samoa had no 2011-12-30) it hands over as the next one.

import java.util.ArrayList;
import java.util.Date;
import java.util.List;
import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.execution.datasources.parquet.ParquetFileFormat;
import org.apache.spark.sql.sources.Filter;
import org.apache.spark.sql.types.StructType;
import scala.Function1;
import scala.Product;
import scala.collection.immutable.Map;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

public class NativeFormat extends ParquetFileFormat {
    public Function1 buildReaderWithPartitionValues(
        SparkSession session, StructType data, StructType folders, StructType wanted, Seq filters, Map options,
        Configuration settings
    ) {
        List kept = new ArrayList();
        for (scala.collection.Iterator all = filters.iterator(); all.hasNext(); ) {
            Filter filter = (Filter) all.next();
            if (!isOnFloats(filter, data) && !isMoved(filter)) {
                kept.add(filter);
            }
        }
        // Another object: what tasks read with holds on to it, and executors do not know this class.
        return new ParquetFileFormat().buildReaderWithPartitionValues(
            session, data, folders, wanted, CollectionConverters.asScala(kept).toSeq(), options, settings);
    }

    /** Whether a condition, or one inside of it, has a date or a time before 1901, or a day behind one left out. */
    private static boolean isMoved(Object part) {
        if (part instanceof Date) { // of a day or of a time
            long moment = ((Date) part).getTime();
            return moment < -2177452800000L || part instanceof java.sql.Date && day(moment - 1) + 1 < day(moment);
        }
        Object[] inner = part instanceof Object[] ? (Object[]) part : new Object[0];
        if (part instanceof Product) {
            inner = new Object[((Product) part).productArity()];
            for (int at = 0; at < inner.length; at++) {
                inner[at] = ((Product) part).productElement(at);
            }
        }
        for (int at = 0; at < inner.length; at++) {
            if (isMoved(inner[at])) {
                return true;
            }
        }
        return false;
    }

    /** The number of the day of a moment, in the driver's zone. */
    private static long day(long moment) {
        return new java.sql.Date(moment).toLocalDate().toEpochDay();
    }

    /** Whether a condition is on a column that has floats, at any depth, or on one whose name begins alike. */
    private static boolean isOnFloats(Filter filter, StructType data) {
        String[] columns = filter.references(); // `a.b` in quotes or without, as the session has it
        for (int at = 0; at < data.fields().length; at++) {
            String kind = data.fields()[at].dataType().catalogString();
            for (int one = 0; one < columns.length; one++) {
                if ((kind.contains("float") || kind.contains("double"))
                    && plain(columns[one]).startsWith(plain(data.fields()[at].name()))) {
                    return true;
                }
            }
        }
        return false;
    }

    private static String plain(String name) {
        return name.replace("`", "").toLowerCase();
    }
}
