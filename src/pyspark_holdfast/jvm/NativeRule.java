// The optimizer rule of `native_rule.py`, which explains it. Compiled by Janino when a session is accelerated, so this is
// the Java that Janino knows: no lambdas, no generics to speak of, and casts where a compiler would infer them.

import com.fasterxml.jackson.databind.ObjectMapper;
import java.lang.reflect.Field;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.WeakHashMap;
import java.util.function.Consumer;
import org.apache.spark.api.python.PythonFunction;
import org.apache.spark.sql.ExperimentalMethods;
import org.apache.spark.sql.catalyst.expressions.Alias;
import org.apache.spark.sql.catalyst.expressions.Attribute;
import org.apache.spark.sql.catalyst.expressions.Expression;
import org.apache.spark.sql.catalyst.plans.logical.Filter;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.catalyst.plans.logical.Project;
import org.apache.spark.sql.catalyst.rules.Rule;
import org.apache.spark.sql.catalyst.trees.TreeNode;
import org.apache.spark.sql.classic.Dataset;
import org.apache.spark.sql.classic.SparkSession;
import org.apache.spark.sql.execution.datasources.LogicalRelation;
import org.apache.spark.sql.execution.datasources.SchemaPruning$;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2Relation;
import org.apache.spark.sql.execution.datasources.v2.DataSourceV2ScanRelation;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceCreationResult;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.execution.datasources.v2.python.PythonScan;
import org.apache.spark.sql.execution.datasources.v2.python.PythonTable;
import org.apache.spark.sql.sources.BaseRelation;
import scala.Function1;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;
import scala.runtime.AbstractPartialFunction;

public class NativeRule extends Rule {
    private static final String FORMAT = "holdfast";
    private static final String SETTING = "spark.holdfast.native";
    private static final String STORE_VARIABLES = "HOLDFAST_STORE__";

    private volatile Consumer planner;
    /** What was planned of each load. A load that nobody holds any more goes, and its plan with it. */
    private final WeakHashMap loads = new WeakHashMap();
    private final WeakHashMap extended = new WeakHashMap();

    /** Who plans loads. */
    public void ask(Consumer planner) {
        this.planner = planner;
    }

    public String ruleName() {
        return "holdfast.NativeRule";
    }

    /** Put this rule into a session, and into those that are made of it later; once, however often it is called. */
    public synchronized void install(SparkSession session) {
        ExperimentalMethods methods = session.sessionState().experimentalMethods();
        if (!methods.extraOptimizations().contains(this)) {
            methods.extraOptimizations_$eq((Seq) methods.extraOptimizations().appended(this));
        }
        if (extended.put(session.extensions(), Boolean.TRUE) == null) {
            session.extensions().injectPreCBORule(new Giver(this));
        }
    }

    private synchronized boolean isIn(SparkSession session) {
        return extended.containsKey(session.extensions())
            || session.sessionState().experimentalMethods().extraOptimizations().contains(this);
    }

    /** The plan with Spark's own scans in it; the plan as it was, if anything is not as expected. */
    public TreeNode apply(TreeNode plan) {
        try {
            SparkSession session = SparkSession.active();
            if (!isOn(session)) {
                return plan;
            }
            Swap swap = new Swap(this, session);
            LogicalPlan changed = (LogicalPlan) ((LogicalPlan) plan).transformUpWithSubqueries(swap);
            return swap.count == 0 ? plan : SchemaPruning$.MODULE$.apply(changed);
        } catch (Exception error) {
            return unchanged(plan, error);
        } catch (LinkageError error) {
            return unchanged(plan, error);
        }
    }

    private TreeNode unchanged(TreeNode plan, Throwable error) {
        warn(error);
        return plan;
    }

    void warn(Throwable error) {
        log().warn("holdfast: a query is read through the format, because its plan could not be changed", error);
    }

    private static boolean isOn(SparkSession session) {
        return "true".equalsIgnoreCase(session.conf().get(SETTING, "true"));
    }

    /** Why a relation of the format is not read by Spark itself; "" if it is, null if it is none of ours. */
    public String refusal(SparkSession session, Object node) {
        if (!(node instanceof DataSourceV2Relation) || !isOurs((DataSourceV2Relation) node)) {
            return null;
        }
        if (!isIn(session)) {
            return "the session is not accelerated: pyspark_holdfast.accelerate(spark)";
        }
        if (!isOn(session)) {
            return SETTING + " is off";
        }
        return planned((DataSourceV2Relation) node, session).refusal;
    }

    static boolean isOurs(DataSourceV2Relation relation) {
        return relation.table() instanceof PythonTable && FORMAT.equalsIgnoreCase(relation.table().name());
    }

    /** What was planned of a load: at the first call by Python, which reads the manifests. */
    Load planned(DataSourceV2Relation relation, SparkSession session) {
        PythonDataSourceV2 source = (PythonDataSourceV2) field(PythonTable.class, "ds", relation.table());
        Load load;
        synchronized (loads) {
            load = (Load) loads.get(source);
            if (load == null) {
                load = new Load();
                loads.put(source, load);
            }
        }
        // Not the source's own lock: Spark takes that one, and Python calls Spark.
        synchronized (load) {
            if (load.refusal == null) {
                load.refusal = "the driver's Python does not answer";
                load.session = session;
                try {
                    load.request = request(source, relation);
                    planner.accept(load);
                } catch (Exception error) {
                    warn(error);
                } finally {
                    load.session = null;
                    load.request = null;
                }
            }
        }
        return load;
    }

    /** How many loads are remembered. */
    public int kept() {
        synchronized (loads) {
            return loads.size();
        }
    }

    /** All that Python must know, as JSON. */
    private static String request(PythonDataSourceV2 source, DataSourceV2Relation relation) throws Exception {
        Map facts = new HashMap();
        facts.put("schema", relation.table().schema().json());
        facts.put("options", relation.options().asCaseSensitiveMap());
        Object made = field(PythonDataSourceV2.class, "dataSourceInPython", source);
        if (made != null) {
            facts.put("source", encoded(((PythonDataSourceCreationResult) made).dataSource()));
        } else {
            PythonFunction python = source.source().dataSourceCls();
            facts.put("kind", encoded(bytes(python.command())));
        }
        facts.put("tasks", Boolean.valueOf(hasTasks(source)));
        facts.put("directory", System.getProperty("user.dir"));
        Map variables = new TreeMap();
        for (Iterator all = System.getenv().entrySet().iterator(); all.hasNext(); ) {
            Map.Entry each = (Map.Entry) all.next();
            if (((String) each.getKey()).startsWith(STORE_VARIABLES)) {
                variables.put(each.getKey(), each.getValue());
            }
        }
        facts.put("variables", variables);
        return new ObjectMapper().writeValueAsString(facts);
    }

    /** Whether the source has planned tasks that it keeps; before 4.1 every query plans its own. */
    private static boolean hasTasks(PythonDataSourceV2 source) {
        Field[] all = PythonDataSourceV2.class.getDeclaredFields();
        for (int at = 0; at < all.length; at++) {
            if (all[at].getName().equals("readInfo")) {
                return field(PythonDataSourceV2.class, "readInfo", source) != null;
            }
        }
        return false;
    }

    private static byte[] bytes(Seq numbers) {
        byte[] found = new byte[numbers.length()];
        scala.collection.Iterator all = numbers.iterator();
        for (int at = 0; at < found.length; at++) {
            found[at] = ((Byte) all.next()).byteValue();
        }
        return found;
    }

    private static String encoded(byte[] bytes) {
        return Base64.getEncoder().encodeToString(bytes);
    }

    private static Object field(Class kind, String name, Object of) {
        try {
            Field found = kind.getDeclaredField(name);
            found.setAccessible(true);
            return found.get(of);
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    /** One load, planned by Python once: what later queries of the same DataFrame read, too. */
    public static class Load {
        SparkSession session;
        String request;
        /** Null until it was planned; "" if Spark itself can read it. */
        volatile String refusal;
        private LogicalRelation files;
        /** Which of the files' rows; null for all. */
        private Expression condition;
        private List names;

        public SparkSession session() {
            return session;
        }

        public String request() {
            return request;
        }

        public void refuse(String reason) {
            refusal = reason;
        }

        /** The files, a condition ("" for none), and the column of the files for each column of the format. */
        public void accept(BaseRelation relation, String where, List names) {
            Dataset rows = session.baseRelationToDataFrame(relation);
            this.files = (LogicalRelation) rows.queryExecution().analyzed();
            this.condition = where.isEmpty() ? null : condition(rows.where(where));
            this.names = new ArrayList(names);
            this.refusal = "";
        }

        /** A scan under the names and ids of these attributes. Its own: both sides of a self-join have one. */
        LogicalPlan scan(DataSourceV2Relation loaded, Seq output) {
            LogicalRelation own = files.newInstance();
            LogicalPlan found = own;
            if (condition != null) {
                found = new Filter((Expression) condition.transformUp(new Renewal(files.output(), own.output())), own);
            }
            String[] columns = loaded.table().schema().fieldNames();
            Map byName = new HashMap();
            for (int at = 0; at < columns.length; at++) {
                byName.put(columns[at], attribute(own, (String) names.get(at)));
            }
            List aliases = new ArrayList();
            for (scala.collection.Iterator all = output.iterator(); all.hasNext(); ) {
                Attribute wanted = (Attribute) all.next();
                aliases.add(alias((Attribute) byName.get(wanted.name()), wanted));
            }
            return new Project(CollectionConverters.asScala(aliases).toSeq(), found);
        }

        /** As the optimizer leaves it: the rule comes when constants are already computed. */
        private static Expression condition(Dataset rows) {
            LogicalPlan optimized = rows.queryExecution().optimizedPlan();
            LogicalPlan found = optimized instanceof Filter ? optimized : rows.queryExecution().analyzed();
            return ((Filter) found).condition();
        }

        private static Attribute attribute(LogicalPlan plan, String name) {
            for (scala.collection.Iterator all = plan.output().iterator(); all.hasNext(); ) {
                Attribute each = (Attribute) all.next();
                if (each.name().equals(name)) {
                    return each;
                }
            }
            throw new IllegalStateException("a column is missing");
        }

        private static Alias alias(Attribute found, Attribute wanted) {
            if (!found.dataType().equals(wanted.dataType()) || found.nullable() != wanted.nullable()) {
                throw new IllegalStateException("a column has another type");
            }
            Seq none = (Seq) scala.collection.immutable.Nil$.MODULE$;
            return new Alias(
                found, wanted.name(), wanted.exprId(), wanted.qualifier(), Option.apply(wanted.metadata()), none);
        }
    }

    /** Puts new attributes in the place of old ones. */
    static class Renewal extends AbstractPartialFunction {
        private final Map byId = new HashMap();

        Renewal(Seq old, Seq renewed) {
            scala.collection.Iterator all = renewed.iterator();
            for (scala.collection.Iterator each = old.iterator(); each.hasNext(); ) {
                byId.put(((Attribute) each.next()).exprId(), all.next());
            }
        }

        public boolean isDefinedAt(Object node) {
            return node instanceof Attribute && byId.containsKey(((Attribute) node).exprId());
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            return isDefinedAt(node) ? byId.get(((Attribute) node).exprId()) : otherwise.apply(node);
        }
    }

    /** Puts Spark's own scan in the place of each scan of the format that it can stand for. */
    static class Swap extends AbstractPartialFunction {
        private final NativeRule rule;
        private final SparkSession session;
        int count = 0;

        Swap(NativeRule rule, SparkSession session) {
            this.rule = rule;
            this.session = session;
        }

        public boolean isDefinedAt(Object node) {
            return node instanceof DataSourceV2ScanRelation
                && ((DataSourceV2ScanRelation) node).scan() instanceof PythonScan
                && isOurs(((DataSourceV2ScanRelation) node).relation());
        }

        public Object applyOrElse(Object node, Function1 otherwise) {
            return isDefinedAt(node) ? swapped((DataSourceV2ScanRelation) node) : otherwise.apply(node);
        }

        private LogicalPlan swapped(DataSourceV2ScanRelation scanned) {
            Load load = rule.planned(scanned.relation(), session);
            if (!load.refusal.isEmpty()) {
                return scanned;
            }
            try {
                LogicalPlan found = load.scan(scanned.relation(), scanned.output());
                count++;
                return found;
            } catch (RuntimeException error) {
                load.refuse("Spark makes other columns of the files: " + error.getMessage());
                rule.warn(error);
                return scanned;
            }
        }
    }

    /** Gives the rule to sessions that are made later: sessions share extensions, and ask them whenever they plan. */
    static class Giver implements Function1 {
        private final NativeRule rule;

        Giver(NativeRule rule) {
            this.rule = rule;
        }

        public Object apply(Object session) {
            rule.install((SparkSession) session);
            return rule;  // this early it finds nothing to do
        }
    }
}
